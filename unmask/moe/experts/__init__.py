"""Experts (Self-MoE): lessons, the LoRA expert of each domain, and the router that mixes them."""
