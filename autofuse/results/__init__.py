"""Every measurement as data: log, Parquet, queries, the ledger."""
