"""Values between processes: an allow-list of classes, an exact plain codec, and errors that always arrive."""
