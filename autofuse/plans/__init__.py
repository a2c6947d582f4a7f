"""Plans, the plan store, lookup and archives."""
