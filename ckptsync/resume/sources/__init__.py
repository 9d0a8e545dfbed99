"""Where the settings of a start come from, and those of a training before: command lines, Hydra, logs, records."""
