"""Long texts in JSON columns, of which a query reads a part."""
