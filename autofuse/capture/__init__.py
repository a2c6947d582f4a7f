"""FX graph (AOTAutograd) to the operator graph."""
