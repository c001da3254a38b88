"""The engines: thin, tables and guarded moves, no policy. Only `_open` imports them."""
