"""Group + schedule -> loop tree -> Triton text."""
