"""What routers do, in numbers: choices and probabilities of experts in, measures with intervals over texts out."""
