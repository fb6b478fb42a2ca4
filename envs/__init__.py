"""What happens: graphs, hardware, costs, simulators and the Gymnasium environments over them."""
