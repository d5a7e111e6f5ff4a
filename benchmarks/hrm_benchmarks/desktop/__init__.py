"""PyTorch's side: training beside the published step, a segment beside the engines; no other part has torch."""
