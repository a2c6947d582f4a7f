"""The data types of the project: graphs of operators and named-axis programs. Imports nothing else of ours."""
