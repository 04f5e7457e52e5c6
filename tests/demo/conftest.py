import sys
from pathlib import Path

# The recipes are scripts of the repository, not part of the installed package.
sys.path.insert(0, str(Path(__file__).parents[2]))
