"""Loads a script of tools/, which has no .py in its name, as a module."""
import importlib.machinery
import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def load(name):
    loader = importlib.machinery.SourceFileLoader(f"script_{name}", str(ROOT / "tools" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module
