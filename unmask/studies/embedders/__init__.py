"""Studies that compare embedders of one base model, trained or not: LLM2Vec, MoEE, Pooling and Attention. Each is a plan, one TOML file."""
