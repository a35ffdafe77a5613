"""Samples and receipts in the files that people have: tables, folders of images, lines of receipts."""
