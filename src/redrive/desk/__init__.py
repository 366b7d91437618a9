"""The desk: everything that users do with runs and dead letters, and the operations that HTTP serves."""
