"""Samples and receipts from users' files: tables, folders of images, lines of receipts."""
