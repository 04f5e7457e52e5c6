"""Models that llama.cpp runs: GGUF files behind the same passes and states as our own decoder."""
