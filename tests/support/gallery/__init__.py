"""A site with something in every state that a page can show, and the pages to look at.

May import the product and Playwright.
"""
