"""Device facts, traffic, occupancy, features, and the learned model."""
