"""The crossrank command: `crossrank run -- msrun …` puts the aggregator beside a training job."""
