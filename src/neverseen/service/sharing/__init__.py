"""How clients share a service: limits, fair shares and turns."""
