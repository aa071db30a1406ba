"""A site with objects in every state that a page can show, and a list of its pages.

May import the product and Playwright.
"""
