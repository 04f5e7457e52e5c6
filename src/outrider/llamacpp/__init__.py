"""Models that llama.cpp runs: GGUF files under the same passes and states as our own decoder."""
