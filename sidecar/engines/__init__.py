"""What the engines call things: name tables, one row or one small file an engine."""
