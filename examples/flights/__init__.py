"""New York's flights of 2013, booked from Spark while everything goes wrong."""
