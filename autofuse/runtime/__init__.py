"""Executor of plans and the torch.compile backend."""
