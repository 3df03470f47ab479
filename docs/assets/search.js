// The theme asks for its search index, 300 KB, on every page. Here the request waits until a reader goes to the search
// field. A page whose address has words to mark (?h=) needs the index at once.

(() => {
  const { open, send } = XMLHttpRequest.prototype;

  XMLHttpRequest.prototype.open = function (method, url, ...more) {
    open.call(this, method, url, ...more);
    if (!`${url}`.endsWith("/search/search_index.json") || new URLSearchParams(location.search).has("h")) return;
    const field = document.querySelector(".md-search__input");
    this.send = () => {
      if (field === document.activeElement) send.call(this);
      else field.addEventListener("focus", () => send.call(this), { once: true });
    };
  };
})();
