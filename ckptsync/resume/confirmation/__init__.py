"""After the start: whether the training really goes on, by what its log says."""
