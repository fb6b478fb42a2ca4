/* Browsers start no worker from the file system: there the search runs in a hidden frame. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inner = frame.contentWindow;
      inner.tell = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.addEventListener("ready", () => {
        this.inner = inner;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
      inner.document.open();
      inner.document.write(
        "<script>" +
          "postMessage = (data) => tell(data);" +
          "importScripts = (...all) => all.reduce((before, src) => before.then(() => new Promise((done) => {" +
          "  const one = document.createElement('script'); one.src = src; one.onload = done;" +
          "  document.head.appendChild(one); })), Promise.resolve());" +
          "<" + "/script>" +
          '<script src="' + url + '" onload="dispatchEvent(new Event(\'ready\'))"><' + "/script>",
      );
      inner.document.close();
    }
    postMessage(data) {
      if (this.inner) this.inner.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
