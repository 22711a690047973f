"""The dialects: channel protocols that come down to rules and guards over the one State."""
