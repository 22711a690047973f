"""`antiphon verify`: whether every record of a store is what was written."""
