"""Process tests: the promises, held by real silo processes, real callers and a real server."""
