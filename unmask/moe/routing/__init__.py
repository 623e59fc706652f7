"""What routers do: a record of every choice of a mixture of experts, and measures of it."""
