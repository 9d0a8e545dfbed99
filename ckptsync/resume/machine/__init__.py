"""What else runs on this machine: processes, GPUs, ports, shared memory."""
