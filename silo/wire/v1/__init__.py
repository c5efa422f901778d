"""Version 1 of the wire contract: code generated from protos/silo/wire/v1 (`make protos`)."""
