"""The loop that runs beside the trainer: one tick is one pass over every stage."""
