# Every target is a subcommand of run.py, which needs nothing but Python; see README.md.
PYTHON ?= python3

TARGETS = demo test check soak test-cluster test-llama-cpp test-browser

.PHONY: $(TARGETS)
$(TARGETS):
	@$(PYTHON) run.py $@
