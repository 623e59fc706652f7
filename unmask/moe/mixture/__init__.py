"""Mixture (MiXSE): LoRA experts of one base model, gated token by token by a small router. A mixture is a backbone like any other."""
