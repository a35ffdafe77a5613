"""Reception: identifies clients, reads requests, and decides whether they may be carried out."""
