"""Arrays that keep their address while their bytes go and come. Experimental: it has never met hardware."""
