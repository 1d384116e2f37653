"""percentes-fast: kill an LLM inference server under load, measure what its clients saw."""

__version__ = "0.1.0"
