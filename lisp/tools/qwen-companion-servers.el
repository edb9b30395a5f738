;;; qwen-companion-servers.el --- Ask the language servers of Emacs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later
;;; Commentary:

;; Asks language servers that eglot or lsp-mode has started, without blocking.
;; Their functions for xref and imenu block until the server answers, and
;; eglot's for imenu reads keys meanwhile.  An unsupported question, a failure
;; and a timeout are each distinguished from an empty answer.
;;
;; Servers report problems by themselves.  Reports on the current text of a
;; buffer are distinguished from reports on an earlier one.

;;; Code:

(require 'cl-lib)
(require 'eieio)
(require 'subr-x)
(require 'url-util)
(require 'qwen-companion-timers)

(declare-function eglot--TextDocumentIdentifier "ext:eglot" ())
(declare-function eglot--TextDocumentPositionParams "ext:eglot" ())
(declare-function eglot--VersionedTextDocumentIdentifier "ext:eglot" ())
(declare-function eglot--capabilities "ext:eglot" (server) t)
(declare-function eglot--signal-textDocument/didChange "ext:eglot" ())
(declare-function eglot-current-server "ext:eglot" ())
(declare-function eglot-managed-p "ext:eglot" ())
(declare-function jsonrpc-async-request "jsonrpc"
                  (connection method params &rest args))
(declare-function lsp--flush-delayed-changes "ext:lsp-mode" ())
(declare-function lsp--text-document-identifier "ext:lsp-mode" ())
(declare-function lsp--text-document-position-params "ext:lsp-mode" ())
(declare-function lsp--versioned-text-document-identifier "ext:lsp-mode" ())
(declare-function lsp-feature\? "ext:lsp-mode" (method))
(declare-function lsp-request-async "ext:lsp-mode" (method params callback &rest keys))
(declare-function lsp-workspaces "ext:lsp-mode" ())
(defvar lsp--default-notification-handlers)

(defconst qwen-companion-servers--wait 4
  "Time limit in seconds for a server's answer.
The Python process waits a little longer, see `tools/calls.py'.")

;;; Servers

(defun qwen-companion-servers--eglot-p ()
  "Return non-nil if the current buffer's server is one of eglot.
Return nil for an eglot that lacks one of the functions used here, some of
which are private to it."
  (and (fboundp 'eglot-managed-p)
       (fboundp 'eglot-current-server)
       (fboundp 'eglot--TextDocumentIdentifier)
       (fboundp 'eglot--TextDocumentPositionParams)
       (fboundp 'eglot--VersionedTextDocumentIdentifier)
       (fboundp 'eglot--capabilities)
       (fboundp 'eglot--signal-textDocument/didChange)
       (eglot-managed-p)))

(defun qwen-companion-servers-current ()
  "Return the language server for the current buffer, or nil.
Compare servers with `equal'."
  (cond ((qwen-companion-servers--eglot-p)
         (eglot-current-server))
        ((bound-and-true-p lsp-managed-mode)
         (lsp-workspaces))))

(defun qwen-companion-servers-name ()
  "Return the name of the language server of the current buffer."
  (format "The language server for %s"
          (string-remove-suffix "-mode" (symbol-name major-mode))))

(defun qwen-companion-servers-get (object key)
  "Return the value at KEY, a keyword, of OBJECT, a server's JSON."
  (if (hash-table-p object)
      (gethash (substring (symbol-name key) 1) object)
    (plist-get object key)))

(defun qwen-companion-servers-list (value)
  "Return VALUE, one JSON object, several, or none, as a list of objects."
  (if (or (hash-table-p value) (keywordp (car-safe value)))
      (list value)
    (append value nil)))

(defun qwen-companion-servers-send-text ()
  "Send the current buffer's text to its server now.
Eglot would do that half a second after a change, lsp-mode a second."
  (cond ((qwen-companion-servers--eglot-p)
         (eglot--signal-textDocument/didChange))
        ((bound-and-true-p lsp-managed-mode)
         (lsp--flush-delayed-changes))))

;;; Questions

(defconst qwen-companion-servers--capabilities
  '((:textDocument/definition . :definitionProvider)
    (:textDocument/references . :referencesProvider)
    (:textDocument/hover . :hoverProvider)
    (:textDocument/documentSymbol . :documentSymbolProvider)
    (:workspace/symbol . :workspaceSymbolProvider))
  "Capabilities of servers by the method that needs them.")

(defun qwen-companion-servers--capable-p (method)
  "Return non-nil if the server of the current buffer can answer METHOD."
  (if (qwen-companion-servers--eglot-p)
      (not (memq (plist-get (eglot--capabilities (eglot-current-server))
                            (alist-get method qwen-companion-servers--capabilities))
                 '(nil :json-false)))
    (lsp-feature\? (substring (symbol-name method) 1))))

(defun qwen-companion-servers--parameters (method)
  "Return the parameters of METHOD about point and the current buffer."
  (pcase method
    (:workspace/symbol nil)
    (:textDocument/documentSymbol
     (list :textDocument (if (qwen-companion-servers--eglot-p)
                             (eglot--TextDocumentIdentifier)
                           (lsp--text-document-identifier))))
    (_ (if (qwen-companion-servers--eglot-p)
           (eglot--TextDocumentPositionParams)
         (lsp--text-document-position-params)))))

(defun qwen-companion-servers-ask (method more finish)
  "Ask the server of the current buffer METHOD about point.
MORE are parameters beside the position.  FINISH is called later, with a
function that returns the server's answer or signals a `user-error' with
the reason why there is none."
  (let ((name (qwen-companion-servers-name)))
    (cl-flet ((fail (format &rest arguments)
                (let ((text (apply #'format (concat "%s " format) name arguments)))
                  (funcall finish (lambda () (user-error "%s" text))))))
      (if (not (qwen-companion-servers--capable-p method))
          (fail "does not support %s; search the files instead"
                (substring (symbol-name method) 1))
        (qwen-companion-servers-send-text)
        (qwen-companion-servers--request
         method
         (append (qwen-companion-servers--parameters method) more)
         (lambda (result) (funcall finish (lambda () result)))
         (lambda (text) (fail "failed to answer (%s); search the files instead" text))
         (lambda ()
           (fail "has not answered within %d seconds; try again later or search the files instead"
                 qwen-companion-servers--wait)))))))

(defun qwen-companion-servers--request (method parameters done failed late)
  "Send METHOD with PARAMETERS to the server of the current buffer.
Call one of three functions, once: DONE with its result, FAILED with a
text, or LATE without arguments after a timeout."
  (if (qwen-companion-servers--eglot-p)
      (jsonrpc-async-request
       (eglot-current-server) method parameters
       :success-fn done
       :error-fn (lambda (err) (funcall failed (or (plist-get err :message) "unknown")))
       :timeout qwen-companion-servers--wait
       :timeout-fn late)
    (let* ((pending t)
           (once (lambda (function &rest arguments)
                   (when pending
                     (setq pending nil)
                     (apply function arguments))))
           (timer (run-at-time qwen-companion-servers--wait nil
                               #'qwen-companion-timers-call once late)))
      (lsp-request-async
       (substring (symbol-name method) 1) parameters
       (lambda (result)
         (cancel-timer timer)
         (funcall once done result))
       :mode 'detached
       :error-handler (lambda (err)
                        (cancel-timer timer)
                        (funcall once failed
                                 (or (qwen-companion-servers-get err :message) "unknown")))))))

;;; Answers

(defconst qwen-companion-servers--slow-size 20000
  "Characters of a text whose list of symbols is long.")

(defun qwen-companion-servers-slow-p ()
  "Return non-nil if listing the current buffer's symbols would block Emacs.
Before Emacs 30, eglot prints each answer into a log, which takes a second
for a thousand symbols."
  (and (qwen-companion-servers--eglot-p)
       (> (buffer-size) qwen-companion-servers--slow-size)
       (version< emacs-version "30")
       (not (eql 0 (bound-and-true-p eglot-events-buffer-size)))))

(defun qwen-companion-servers-location (object)
  "Return (FILE . LINE) of OBJECT, a location or a symbol with one.
LINE counts from 1.  FILE is nil if OBJECT has none, or none on this
machine."
  (let ((location (or (qwen-companion-servers-get object :location) object)))
    (cons (qwen-companion-servers--file
           (or (qwen-companion-servers-get location :targetUri)
               (qwen-companion-servers-get location :uri)))
          (qwen-companion-servers-line object))))

(defun qwen-companion-servers-line (object)
  "Return the line, from 1, of OBJECT, a location or a symbol with one.
Return nil if it has none."
  (let* ((location (or (qwen-companion-servers-get object :location) object))
         (range (cl-some (lambda (key) (qwen-companion-servers-get location key))
                         '(:targetSelectionRange :selectionRange :range)))
         (start (and range (qwen-companion-servers-get range :start))))
    (and start (1+ (qwen-companion-servers-get start :line)))))

(defun qwen-companion-servers--file (uri)
  "Return the name of the local file that URI denotes, or nil."
  (when (string-prefix-p "file:///" (or uri ""))
    (decode-coding-string (url-unhex-string (substring uri (length "file://")))
                          'utf-8)))

(defconst qwen-companion-servers--kinds
  ["file" "module" "namespace" "package" "class" "method" "property" "field"
   "constructor" "enum" "interface" "function" "variable" "constant" "string"
   "number" "boolean" "array" "object" "key" "null" "enum member" "struct"
   "event" "operator" "type parameter"]
  "Names of the kinds of symbols; the first has the number 1.")

(defun qwen-companion-servers-kind (symbol)
  "Return the kind of SYMBOL, a server's JSON, in words."
  (let ((kind (qwen-companion-servers-get symbol :kind)))
    (if (and (integerp kind) (<= 1 kind (length qwen-companion-servers--kinds)))
        (aref qwen-companion-servers--kinds (1- kind))
      "symbol")))

;;; Reports of problems

(defconst qwen-companion-servers--quiet '(0.1 . 0.6)
  "Seconds without another report after which a server has reported all.
The first is the minimum; the other is for a server not measured yet.")

(cl-defstruct (qwen-companion-servers--watch
               (:constructor qwen-companion-servers--make-watch)
               (:copier nil))
  "The reports of a server so far.
PUBLISHED is non-nil if there is one.  VERSIONED is non-nil if the server
has named the text version of a report.  PAUSE is the longest time between
two reports on one text, in seconds, nil if that was never measured.
WAITS are the current waits by file.  UNREPORTED has a key for each file
that was opened or closed and not reported on since."
  published versioned pause (waits (make-hash-table :test #'equal))
  (unreported (make-hash-table :test #'equal)))

(cl-defstruct (qwen-companion-servers--wait
               (:constructor qwen-companion-servers--make-wait)
               (:copier nil))
  "Waiting for a server's report on the text of BUFFER, which visits FILE.
WATCH is the server's.  ANY is non-nil if it has reported since
the text has changed, and REPORTED the time of the last report if that was
on this text.  REVERTED is non-nil if the change was a revert that
`qwen-companion-servers-text-changed' has not been called for.  CLEARS is
non-nil after a revert that may have closed the file and opened it again,
until the report with which the server withdraws the old ones: it is the
version of the text before the revert."
  buffer file watch any reported reverted clears)

(defvar qwen-companion-servers--watches (make-hash-table :test #'eq :weakness 'key)
  "The watches of servers, which are objects of eglot or lsp-mode.")

(defun qwen-companion-servers--document ()
  "Return (FILE . VERSION) of the current buffer, as its server has them."
  (let ((document (if (qwen-companion-servers--eglot-p)
                      (eglot--VersionedTextDocumentIdentifier)
                    (lsp--versioned-text-document-identifier))))
    (cons (qwen-companion-servers--file (plist-get document :uri))
          (plist-get document :version))))

(defun qwen-companion-servers--watch-reports ()
  "Observe the reports of the current buffer's server; return its watch.
Return nil if that is impossible."
  (let ((server (if (qwen-companion-servers--eglot-p)
                    (let ((server (eglot-current-server))
                          (slot '-notification-dispatcher))
                      (when (slot-exists-p server slot)
                        (add-function :before (slot-value server slot)
                                      #'qwen-companion-servers--on-notification)
                        server))
                  (add-function :before (gethash "textDocument/publishDiagnostics"
                                                 lsp--default-notification-handlers)
                                #'qwen-companion-servers--on-report)
                  (car (lsp-workspaces)))))
    (and server
         (or (gethash server qwen-companion-servers--watches)
             (puthash server (qwen-companion-servers--make-watch)
                      qwen-companion-servers--watches)))))

;; Eglot tells Flymake at once that there are no problems, whatever the server
;; has reported.

(defconst qwen-companion-servers--hooks '(eglot-managed-mode-hook lsp-after-open-hook)
  "Hooks run in a buffer after it was opened in a server.")

(defun qwen-companion-servers-enable ()
  "Start recording which files the servers have reported on."
  (dolist (hook qwen-companion-servers--hooks)
    (add-hook hook #'qwen-companion-servers--opened)))

(defun qwen-companion-servers--opened ()
  "Record that the server has not reported on the current buffer yet."
  (when-let* (((qwen-companion-servers-current))
              (watch (qwen-companion-servers--watch-reports)))
    (puthash (car (qwen-companion-servers--document)) t
             (qwen-companion-servers--watch-unreported watch))))

(defun qwen-companion-servers-unreported-p ()
  "Return non-nil if a server has not reported on the current buffer yet."
  (when-let* (((qwen-companion-servers-current))
              (watch (qwen-companion-servers--watch-reports)))
    (gethash (car (qwen-companion-servers--document))
             (qwen-companion-servers--watch-unreported watch))))

(defun qwen-companion-servers-forget ()
  "Stop recording the reports of servers."
  (dolist (hook qwen-companion-servers--hooks)
    (remove-hook hook #'qwen-companion-servers--opened))
  (maphash (lambda (server _)
             (when (eieio-object-p server)
               (let ((slot '-notification-dispatcher))
                 (remove-function (slot-value server slot)
                                  #'qwen-companion-servers--on-notification))))
           qwen-companion-servers--watches)
  (clrhash qwen-companion-servers--watches)
  (when (boundp 'lsp--default-notification-handlers)
    (remove-function (gethash "textDocument/publishDiagnostics"
                              lsp--default-notification-handlers)
                     #'qwen-companion-servers--on-report)))

(defun qwen-companion-servers--on-notification (server method parameters)
  "Handle the notification METHOD of SERVER, one of eglot, with PARAMETERS."
  (when (eq method 'textDocument/publishDiagnostics)
    (qwen-companion-servers--on-report server parameters)))

(defun qwen-companion-servers--on-report (server report)
  "Handle REPORT, all problems that SERVER knows in a file."
  (when-let* ((watch (gethash server qwen-companion-servers--watches))
              (version (or (qwen-companion-servers-get report :version) 'none))
              (file (qwen-companion-servers--file (qwen-companion-servers-get report :uri))))
    (let ((unreported (qwen-companion-servers--watch-unreported watch))
          (empty (zerop (length (qwen-companion-servers-get report :diagnostics)))))
      (setf (qwen-companion-servers--watch-published watch) t)
      (when (integerp version)
        (setf (qwen-companion-servers--watch-versioned watch) t))
      (if (and empty
               (not (integerp version))
               (qwen-companion-servers--watch-versioned watch))
          ;; The file was closed, perhaps to be opened again.
          (puthash file t unreported)
        (remhash file unreported))
      (when-let* ((wait (gethash file (qwen-companion-servers--watch-waits watch)))
                  (buffer (qwen-companion-servers--wait-buffer wait)))
        (when (buffer-live-p buffer)
          (qwen-companion-servers--record-report wait version empty))))))

(defun qwen-companion-servers--record-report (wait version empty)
  "Record in WAIT a report on the text VERSION, `none' if it names none.
EMPTY is non-nil if it lists no problems.  An editor that reverts a buffer
closes the file and opens it again, and versions count anew.  The server
then withdraws its reports on the closed file by an empty one without a
version, and reports on the new text later."
  (let* ((watch (qwen-companion-servers--wait-watch wait))
         (now (float-time))
         (last (qwen-companion-servers--wait-reported wait))
         (clears (qwen-companion-servers--wait-clears wait))
         (document (lambda ()
                     (with-current-buffer (qwen-companion-servers--wait-buffer wait)
                       (cdr (qwen-companion-servers--document)))))
         (current (cond ((integerp version) (>= version (funcall document)))
                        ((qwen-companion-servers--watch-versioned watch) nil)
                        (t (not (and empty clears (<= (funcall document) clears)))))))
    (when empty
      (setf (qwen-companion-servers--wait-clears wait) nil))
    (when (and current last)
      (setf (qwen-companion-servers--watch-pause watch)
            (max (- now last) (or (qwen-companion-servers--watch-pause watch) 0))))
    (setf (qwen-companion-servers--wait-any wait) t
          (qwen-companion-servers--wait-reported wait) (and current now))))

(defun qwen-companion-servers-wait ()
  "Start waiting for a report of the current buffer's server on its next text.
Return an object for the functions below, or nil if there is no server
with observable reports."
  (when-let* (((qwen-companion-servers-current))
              (watch (qwen-companion-servers--watch-reports))
              (file (car (qwen-companion-servers--document))))
    (add-hook 'before-revert-hook #'qwen-companion-servers--reverting nil t)
    (puthash file
             (qwen-companion-servers--make-wait :buffer (current-buffer) :file file :watch watch)
             (qwen-companion-servers--watch-waits watch))))

(defun qwen-companion-servers--reverting ()
  "Forget the reports on the current buffer before it is reverted."
  (when-let* (((qwen-companion-servers-current))
              (watch (qwen-companion-servers--watch-reports))
              (wait (gethash (car (qwen-companion-servers--document))
                             (qwen-companion-servers--watch-waits watch))))
    (setf (qwen-companion-servers--wait-any wait) nil
          (qwen-companion-servers--wait-reported wait) nil
          (qwen-companion-servers--wait-reverted wait) t
          (qwen-companion-servers--wait-clears wait)
          (and (qwen-companion-servers--eglot-p)
               (cdr (qwen-companion-servers--document))))))

(defun qwen-companion-servers-text-changed (wait)
  "Forget the reports recorded for WAIT, unless a revert has done that."
  (if (qwen-companion-servers--wait-reverted wait)
      (setf (qwen-companion-servers--wait-reverted wait) nil)
    (setf (qwen-companion-servers--wait-any wait) nil
          (qwen-companion-servers--wait-reported wait) nil)))

(defun qwen-companion-servers-any-report-p (wait)
  "Return non-nil if the server of WAIT has reported since the text changed.
That report may be on an earlier text."
  (qwen-companion-servers--wait-any wait))

(defun qwen-companion-servers-publishes-p (wait)
  "Return non-nil when the server of WAIT has reported on some file."
  (qwen-companion-servers--watch-published (qwen-companion-servers--wait-watch wait)))

(defun qwen-companion-servers-reported-p (wait)
  "Return non-nil if the last report of the server of WAIT is on its text."
  (qwen-companion-servers--wait-reported wait))

(defun qwen-companion-servers-settled-p (wait)
  "Return non-nil if the server of WAIT has reported all on its text."
  (when-let* ((reported (qwen-companion-servers--wait-reported wait))
              (watch (qwen-companion-servers--wait-watch wait)))
    (pcase-let* ((`(,least . ,unknown) qwen-companion-servers--quiet)
                 (pause (qwen-companion-servers--watch-pause watch))
                 (settled (not (< 0 (- (+ reported (if pause (max least (* 2 pause)) unknown))
                                       (float-time))
                                  60))))
      (when (and settled (not pause))
        (setf (qwen-companion-servers--watch-pause watch) 0))
      settled)))

(defun qwen-companion-servers-end-wait (wait)
  "End WAIT."
  (let ((waits (qwen-companion-servers--watch-waits (qwen-companion-servers--wait-watch wait)))
        (file (qwen-companion-servers--wait-file wait)))
    (when (eq wait (gethash file waits))
      (remhash file waits)
      (when (buffer-live-p (qwen-companion-servers--wait-buffer wait))
        (with-current-buffer (qwen-companion-servers--wait-buffer wait)
          (remove-hook 'before-revert-hook #'qwen-companion-servers--reverting t))))))

(provide 'qwen-companion-servers)
;;; qwen-companion-servers.el ends here
