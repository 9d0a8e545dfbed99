"""What the commands do, as functions of a node: no printing, no parsing."""
