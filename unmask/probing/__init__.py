"""Probing: what a way of reading, or a stage of training, did to a model. Each probe answers one question without training the model.

    words      how much of each word's part of speech, chunk or entity do its states tell? (a linear probe on frozen states)
    prefixes   does the state of a token use what follows it? (exactly not, under causal attention)
    geometry   are paraphrases close, and all texts spread over the sphere?
    masked     does the model fill gaps, the way MNTP trains it to?

The first, second and fourth are the analyses of LLM2Vec (arXiv 2404.05961, sections 4 and 5); the third is Wang and Isola's
(arXiv 2005.10242). A result is a frozen dataclass; `as_json()` gives it with everything that it depends on.
"""
