"""The search driver, strategies and budgets."""
