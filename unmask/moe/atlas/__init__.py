"""Atlas: a page that shows what routers do, from one routing record or two."""
