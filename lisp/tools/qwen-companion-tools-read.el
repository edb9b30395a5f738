;;; qwen-companion-tools-read.el --- Tools that read what Emacs knows  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later
;;; Commentary:

;; The built-in tools for models.  They answer from the present state of this
;; Emacs: buffers, language servers that are running, xref, imenu, flymake, the
;; last compilation.  None of them writes, starts a process, evaluates text of
;; a model, or visits a file.

;;; Code:

(eval-when-compile (require 'compile))
(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-buffers)
(require 'qwen-companion-context)
(require 'qwen-companion-diagnostics)
(require 'qwen-companion-places)
(require 'qwen-companion-privacy)
(require 'qwen-companion-problems)
(require 'qwen-companion-servers)
(require 'qwen-companion-timers)
(require 'qwen-companion-tools)
(require 'qwen-companion-untrusted)
(require 'url-util)

(defcustom qwen-companion-tools-servers '(xref-lsp eglot)
  "Backends of xref that use a running language server.
Models may ask them everything.  Of other backends, only those for Emacs
Lisp and for tags tables are asked, and only for definitions: most others
start a program that searches files for each question."
  :group 'qwen-companion
  :type '(repeat symbol))

(defconst qwen-companion-tools-read--lines '(200 . 800)
  "Lines of a text that a model gets: (DEFAULT . MAXIMUM).")

(defconst qwen-companion-tools-read--size (* 2 1024 1024)
  "Most bytes of an unvisited file that are searched.")

(defconst qwen-companion-tools-read--hover-wait 1.5
  "Seconds that functions of eldoc may take to describe a position.")

(defvar imenu-create-index-function)
(defvar tags-table-list)
(defvar tags-file-name)

(declare-function compilation--ensure-parse "compile" (limit))
(declare-function xref-backend-apropos "xref" (backend pattern))
(declare-function xref-backend-definitions "xref" (backend identifier))
(declare-function xref-backend-identifier-at-point "xref" (backend))
(declare-function xref-backend-references "xref" (backend identifier))
(declare-function xref-buffer-location-p "xref" (cl-x) t)
(declare-function xref-find-backend "xref" ())
(declare-function xref-item-location "xref" (cl-x) t)
(declare-function xref-item-summary "xref" (cl-x) t)
(declare-function xref-location-group "xref" (location))
(declare-function xref-location-line "xref" (location))
(declare-function xref-location-marker "xref" (location))
(declare-function xref-elisp-location-file "elisp-mode" (cl-x) t)
(declare-function xref-elisp-location-symbol "elisp-mode" (cl-x) t)
(declare-function xref-elisp-location-p "elisp-mode" (cl-x) t)

;;; Positions

(defun qwen-companion-tools-read--line-count ()
  "Return the number of lines of the current buffer."
  (save-restriction
    (widen)
    (line-number-at-pos (if (and (> (point-max) (point-min))
                                 (eq (char-before (point-max)) ?\n))
                            (1- (point-max))
                          (point-max)))))

(defun qwen-companion-tools-read--go-to (path line symbol)
  "Go to SYMBOL in LINE of the current buffer, which has the text of PATH.
If LINE is nil, go to its first occurrence in the file.  If SYMBOL is nil,
go to the first word of the line."
  (widen)
  (goto-char (point-min))
  (when line
    (let ((count (qwen-companion-tools-read--line-count)))
      (when (> line count)
        (user-error "%s has no line %d; the last one is %d" path line count)))
    (forward-line (1- line)))
  (if (not symbol)
      (back-to-indentation)
    (let ((case-fold-search nil)
          (end (and line (line-end-position))))
      (unless (or (re-search-forward (format "\\_<%s\\_>" (regexp-quote symbol)) end t)
                  (search-forward symbol end t))
        (user-error "There is no %s in %s%s" symbol
                    (if line (format "line %d of " line) "")
                    path))
      (goto-char (match-beginning 0)))))

(defmacro qwen-companion-tools-read--with-text (path &rest body)
  "Run BODY with the text of the file PATH in the current buffer, widened.
The buffer visits the file, or is a temporary one in the major mode that
its name chooses, without any hooks."
  (declare (indent 1) (debug t))
  `(qwen-companion-tools-read--call-with-text ,path (lambda () ,@body)))

(defun qwen-companion-tools-read--call-with-text (path function)
  "Call FUNCTION with the text of the file PATH in the current buffer."
  (if-let* ((buffer (qwen-companion-tools-visiting path)))
      (with-current-buffer buffer
        (qwen-companion-buffers-widened
          (funcall function)))
    (when (qwen-companion-places-remote-p path)
      (user-error "%s is not open in Emacs; read it from the disk" path))
    (with-temp-buffer
      (let ((file-name-handler-alist nil)
            (inhibit-file-name-handlers nil))
        (insert-file-contents path nil 0 qwen-companion-tools-read--size))
      (qwen-companion-untrusted-set-major-mode path)
      (goto-char (point-min))
      (funcall function))))

(defun qwen-companion-tools-read--files ()
  "Return the buffers of files that the calling CLI may see, last used first."
  (cl-remove-if-not
   (lambda (buffer)
     (when-let* ((file (buffer-file-name buffer)))
       (and (not (qwen-companion-privacy-secret-p buffer))
            (qwen-companion-tools-in-scope-p file))))
   (buffer-list)))

;;; Backends and servers

(defun qwen-companion-tools-read--backend ()
  "Return the xref backend of the current buffer if models may ask it, or nil."
  (let ((backend (ignore-errors (xref-find-backend))))
    (cond ((memq backend qwen-companion-tools-servers)
           ;; A remote backend's names would be read as files of this machine.
           (and (not (qwen-companion-places-remote-p default-directory)) backend))
          ((eq backend 'elisp) backend)
          ;; Without a table it would ask the user for one.
          ((and (eq backend 'etags)
                (or (bound-and-true-p tags-table-list)
                    (bound-and-true-p tags-file-name)))
           backend))))

(defun qwen-companion-tools-read--server ()
  "Return the language server of the current buffer if models may ask it, or nil."
  (and (memq (qwen-companion-tools-read--backend) '(xref-lsp eglot))
       (qwen-companion-servers-current)))

(defun qwen-companion-tools-read--buffers-with-backend (path)
  "Return file buffers with an xref backend for finding names.
Of those with the same backend, return the last used; language servers
come first.  With PATH, return only buffers in the major mode of that
file."
  (let ((mode (and path (qwen-companion-untrusted-major-mode path)))
        (servers nil)
        (others nil))
    (dolist (buffer (qwen-companion-tools-read--files))
      (with-current-buffer buffer
        (when (or (null mode) (derived-mode-p mode))
          (if-let* ((server (qwen-companion-tools-read--server)))
              (cl-pushnew (cons server buffer) servers :key #'car :test #'equal)
            (when-let* ((backend (qwen-companion-tools-read--backend)))
              (cl-pushnew (cons backend buffer) others :key #'car))))))
    (or (mapcar #'cdr (nconc (nreverse servers) (nreverse others)))
        (user-error "%s, and no language server in Emacs knows it; search the files instead"
                    (if path (format "%s is not open in Emacs" path)
                      "No file of the project is open in Emacs")))))

;;; Locations

(defconst qwen-companion-tools-read--slice 0.003
  "Seconds for which making a long answer may block Emacs at a time.")

(defconst qwen-companion-tools-read--line-size (* 256 1024)
  "Most bytes of an unvisited file that are read to find a line in it.")

(defun qwen-companion-tools-read--in-slices (function items finish)
  "Call FUNCTION with each of ITEMS, then FINISH with the values.
Each value is a list; they are concatenated.  Both calls happen now or
later."
  (let ((found nil))
    (cl-labels ((go-on ()
                  (let ((end (+ (float-time) qwen-companion-tools-read--slice)))
                    (while (and items
                                (progn
                                  (dolist (value (funcall function (pop items)))
                                    (push value found))
                                  (< (float-time) end))))
                    (if items
                        (run-at-time 0 nil #'qwen-companion-timers-call #'go-on)
                      (funcall finish (nreverse found))))))
      (go-on))))

(defun qwen-companion-tools-read--with-lines (places finish)
  "Call FINISH, now or later, with PLACES as items of an answer.
Each of PLACES is (FILE . LINE); its text is that line."
  (qwen-companion-tools-read--in-slices
   #'qwen-companion-tools-read--lines-of (seq-group-by #'car places) finish))

(defun qwen-companion-tools-read--lines-of (group)
  "Return GROUP, (FILE . PLACES) as above, as items of an answer."
  (pcase-let ((`(,file . ,places) group))
    (cl-flet ((text (line)
                (save-excursion
                  (goto-char (point-min))
                  (if (and line (zerop (forward-line (1- line))))
                      (string-trim (buffer-substring-no-properties
                                    (point) (line-end-position)))
                    ""))))
      (when file
        (with-current-buffer (or (qwen-companion-buffers-visiting file)
                                 (generate-new-buffer " *qwen-companion lines*" t))
          (unwind-protect
              (save-restriction
                (widen)
                (unless buffer-file-name
                  (ignore-error file-error
                    (insert-file-contents file nil 0 qwen-companion-tools-read--line-size)))
                (mapcar (lambda (place)
                          (qwen-companion-tools-place file (cdr place) nil (text (cdr place))))
                        places))
            (unless buffer-file-name
              (kill-buffer))))))))

(defun qwen-companion-tools-read--places (xrefs)
  "Return XREFS as items of an answer."
  (delq nil (mapcar #'qwen-companion-tools-read--xref-place xrefs)))

(defun qwen-companion-tools-read--xref-place (xref)
  "Return XREF as an item of an answer, without visiting its file."
  (let* ((location (xref-item-location xref))
         (summary (xref-item-summary xref)))
    (cond
     ((and (fboundp 'xref-elisp-location-p) (xref-elisp-location-p location))
      (qwen-companion-tools-read--lisp-place
       (xref-elisp-location-symbol location) (xref-elisp-location-file location)
       summary))
     ((xref-buffer-location-p location)
      (let ((marker (xref-location-marker location)))
        (with-current-buffer (marker-buffer marker)
          (when buffer-file-name
            (qwen-companion-tools-place
             buffer-file-name (line-number-at-pos marker t) nil summary)))))
     (t
      (let ((file (xref-location-group location)))
        (when (and (stringp file) (not (qwen-companion-places-remote-p file)))
          (qwen-companion-tools-place
           file (xref-location-line location) nil summary)))))))

;;; Questions

(defun qwen-companion-tools-read--ask-server (method more select finish)
  "Ask the server of the current buffer METHOD about point, with MORE parameters.
SELECT is called with the objects in its answer and returns those to use.
FINISH is called with a function that returns their locations as items of
an answer, or signals why there is no answer."
  (qwen-companion-servers-ask
   method more
   (lambda (result)
     (condition-case nil
         (qwen-companion-tools-read--with-lines
          (mapcar #'qwen-companion-servers-location
                  (funcall select (qwen-companion-servers-list (funcall result))))
          (lambda (places) (funcall finish (lambda () places))))
       (user-error (funcall finish result))))))

(defun qwen-companion-tools-read--none (backend what)
  "Return the answer that the xref BACKEND has found no WHAT.
This is a string, or a function that signals a `user-error' if the WHAT
may exist all the same."
  (pcase backend
    ((or 'eglot 'xref-lsp) (format "%s knows no %s." (qwen-companion-servers-name) what))
    ('elisp (lambda ()
              (user-error "This Emacs has loaded no %s; there may still be one in a file, so search the files" what)))
    ('etags (format "The tags table, which may be older than the files, has no %s." what))
    (_ (format "The backend %s of Emacs knows no %s." backend what))))

(defun qwen-companion-tools-read--ask-at (path line symbol method more question what)
  "Ask about SYMBOL at LINE of the open file PATH; return an answer.
Send METHOD with the parameters MORE to a language server.  For another
backend of xref, call the function QUESTION with the backend and an
identifier.  WHAT is a noun for what is sought."
  (require 'xref)
  (with-current-buffer (qwen-companion-tools-buffer path)
    (save-excursion
      (save-restriction
        (qwen-companion-tools-read--go-to path line symbol)
        (let* ((backend (or (qwen-companion-tools-read--backend)
                            (user-error "No language server runs for %s; search the files instead" path)))
               (none (qwen-companion-tools-read--none
                      backend (format "%s of %s in line %d of %s"
                                      what symbol (line-number-at-pos nil t) path))))
          (if (qwen-companion-tools-read--server)
              (qwen-companion-tools-read--later
               (lambda (answer)
                 (qwen-companion-tools-read--ask-server
                  method more #'identity
                  (lambda (places)
                    (funcall answer (lambda () (or (funcall places) none)))))))
            (or (qwen-companion-tools-read--places
                 (funcall question backend
                          (or (xref-backend-identifier-at-point backend) symbol)))
                (if (functionp none) (funcall none) none))))))))

(defun qwen-companion-tools-read--later (function)
  "Return an answer: a later call of FUNCTION with point where it is now."
  (let ((buffer (current-buffer))
        (position (point)))
    (lambda (answer)
      (with-current-buffer buffer
        (qwen-companion-buffers-widened
          (goto-char position)
          (funcall function answer))))))

(defun qwen-companion-tools-read--ask-names (path name select question what)
  "Ask all servers and backends of the project about NAME; return an answer.
With PATH, ask only those for such files.  SELECT is called with the symbols
in a language server's answer and returns those to use.  For another
backend of xref, call the function QUESTION with the backend and NAME.
WHAT is a noun for what is sought."
  (require 'xref)
  (let* ((buffers (qwen-companion-tools-read--buffers-with-backend path))
         (waiting (length buffers))
         (found nil))
    (lambda (answer)
      (dolist (buffer buffers)
        (with-current-buffer buffer
          (let* ((backend (qwen-companion-tools-read--backend))
                 (none (qwen-companion-tools-read--none backend what))
                 (finish (lambda (places)
                           (push (lambda () (or (funcall places) none)) found)
                           (when (zerop (cl-decf waiting))
                             (funcall answer (apply-partially
                                              #'qwen-companion-tools-read--together
                                              (nreverse found)))))))
            (if (qwen-companion-tools-read--server)
                (qwen-companion-tools-read--ask-server
                 :workspace/symbol (list :query name) select finish)
              (let ((places (condition-case err
                                (qwen-companion-tools-read--places
                                 (funcall question backend name))
                              (error (lambda () (user-error "%s" (error-message-string err)))))))
                (funcall finish (if (functionp places) places (lambda () places)))))))))))

(defun qwen-companion-tools-read--together (answers)
  "Return one text for ANSWERS, functions that return or signal one each.
Signal a `user-error' if all of them do."
  (let (places said failed)
    (dolist (answer answers)
      (condition-case err
          (let ((value (funcall answer)))
            (cond ((functionp value) (funcall value))
                  ((stringp value) (push value said))
                  (t (setq places (append places value)))))
        (user-error (push (concat (error-message-string err) ".") failed))))
    (let ((text (string-join (append (nreverse said) (reverse failed)) " ")))
      (cond (places)
            ((= (length failed) (length answers)) (user-error "%s" text))
            (t text)))))

(defun qwen-companion-tools-read--named (symbol)
  "Return a function that picks the entries named SYMBOL from a list.
A server also lists longer names, and adds the arguments to some."
  (let ((name (format "\\(?:\\`\\|[.:#]\\)%s\\(?:\\'\\|[(<]\\)" (regexp-quote symbol)))
        (case-fold-search nil))
    (lambda (symbols)
      (cl-remove-if-not (lambda (each)
                          (string-match-p name (qwen-companion-servers-get each :name)))
                        symbols))))

(qwen-companion-define-tool "definition"
    ((symbol string "The name to look up, as the text has it." :required t)
     (path path "The file in which the name is used. Without it, any open file of the project may be asked.")
     (line line "The line of PATH in which it is used, from 1."))
    "Where a name is defined, by the language server.
More exact than a search in files."
  :unasked t
  :paged t
  (if (and path (qwen-companion-tools-visiting path))
      (qwen-companion-tools-read--ask-at
       path line symbol :textDocument/definition nil
       #'xref-backend-definitions "definition")
    ;; The last part of a qualified name.
    (let ((name (car (last (split-string symbol "\\.\\|::\\|#\\|/" t)))))
      (qwen-companion-tools-read--ask-names
       path name (qwen-companion-tools-read--named name)
       (lambda (backend _) (xref-backend-definitions backend symbol))
       (format "definition of %s" symbol)))))

(qwen-companion-define-tool "references"
    ((symbol string "The name to look up, as the text has it." :required t)
     (path path "An open file in which the name is used or defined." :required t)
     (line line "The line of PATH in which it is, from 1."))
    "All uses of a name, by the language server.
Unlike a search in files, it leaves out other things of the same name."
  :unasked t
  :paged t
  (qwen-companion-tools-read--ask-at
   path line symbol :textDocument/references '(:context (:includeDeclaration t))
   (lambda (backend identifier)
     (unless (memq backend qwen-companion-tools-servers)
       (user-error "No language server runs for %s, so Emacs knows no more than a search in files; use that" path))
     (xref-backend-references backend identifier))
   "use"))

;;; Symbols

(defun qwen-companion-tools-read--index (path)
  "Return the symbols of the file PATH as an answer.
Ask a language server that has the file, else use imenu.  Imenu must yield
to keys, so a server is not asked through it."
  (require 'imenu)
  (require 'xref)
  (qwen-companion-tools-read--with-text path
    (if (and buffer-file-name
             (qwen-companion-tools-read--server)
             (not (qwen-companion-servers-slow-p)))
        (qwen-companion-tools-read--later
         (lambda (answer)
           (let ((name (qwen-companion-servers-name)))
             (qwen-companion-servers-ask
              :textDocument/documentSymbol nil
              (lambda (result)
                (condition-case nil
                    (qwen-companion-tools-read--in-slices
                     (apply-partially #'qwen-companion-tools-read--symbol-places path)
                     (qwen-companion-tools-read--symbols (funcall result) nil)
                     (lambda (places)
                       (funcall answer
                                (or (qwen-companion-tools-read--by-line places)
                                    (format "%s knows no symbol in %s." name path)))))
                  (user-error (funcall answer result))))))))
      (or (qwen-companion-tools-read--at-lines
           (qwen-companion-tools-read--imenu path) path)
          (format "Emacs, searching by patterns, finds no definition in %s." path)))))

(defun qwen-companion-tools-read--imenu (path)
  "Return the entries of imenu for the current buffer, which has the text of PATH.
Each is (POSITION . NAME).  If imenu would ask a language server, use the
index of the major mode instead."
  (if (and buffer-file-name (qwen-companion-servers-current))
      (let ((buffer (current-buffer)))
        (with-temp-buffer
          (insert-buffer-substring-no-properties buffer)
          (qwen-companion-untrusted-set-major-mode path)
          (qwen-companion-tools-read--imenu path)))
    (condition-case nil
        (qwen-companion-tools-read--flatten (funcall imenu-create-index-function) nil)
      (imenu-unavailable
       (user-error "Emacs cannot list the definitions of files like %s" path)))))

(defun qwen-companion-tools-read--by-line (places)
  "Return PLACES, items of an answer, sorted by their lines."
  (cl-stable-sort places #'< :key (lambda (place) (or (plist-get place :line) 0))))

(defun qwen-companion-tools-read--symbols (found parents)
  "Return the symbols FOUND by a server, and those in them, below PARENTS.
Each is (NAMES . SYMBOL), NAMES being those of its parents and its own."
  (cl-loop for symbol in (qwen-companion-servers-list found)
           for container = (qwen-companion-servers-get symbol :containerName)
           for names = (append parents
                               (and (not parents) container (not (string-empty-p container))
                                    (list container))
                               (list (qwen-companion-servers-get symbol :name)))
           collect (cons names symbol)
           nconc (qwen-companion-tools-read--symbols
                  (qwen-companion-servers-get symbol :children) names)))

(defun qwen-companion-tools-read--symbol-places (path named)
  "Return a list with the item of an answer for NAMED, a symbol of the file PATH.
NAMED is (NAMES . SYMBOL), see `qwen-companion-tools-read--symbols'."
  (list (qwen-companion-tools-place
         path (qwen-companion-servers-line (cdr named)) nil
         (format "%s (%s)" (string-join (car named) " > ")
                 (qwen-companion-servers-kind (cdr named))))))

(defun qwen-companion-tools-read--flatten (index parents)
  "Return the entries of the imenu INDEX, below the names PARENTS.
Each is (POSITION . NAME)."
  (cl-loop for (name . rest) in index
           for names = (cons (substring-no-properties name) parents)
           for position = (qwen-companion-tools-read--position rest)
           when (and (consp rest) (consp (car rest)))
           nconc (qwen-companion-tools-read--flatten rest names)
           else when position
           collect (cons position (string-join (reverse names) " > "))))

(defun qwen-companion-tools-read--at-lines (entries path)
  "Return ENTRIES, (POSITION . NAME) in the current buffer, sorted.
Each becomes an item of an answer about the file PATH.  Lines are counted
from one entry to the next."
  (goto-char (point-min))
  (let ((line 1))
    (mapcar (pcase-lambda (`(,position . ,name))
              (let ((start (point)))
                (goto-char position)
                (forward-line 0)
                (cl-incf line (count-lines start (point))))
              (qwen-companion-tools-place path line nil name))
            (cl-stable-sort entries #'< :key #'car))))

(defun qwen-companion-tools-read--position (value)
  "Return the position in VALUE, of an entry of imenu, or nil."
  (let ((position (if (consp value) (car value) value)))
    (cond ((markerp position) (marker-position position))
          ((overlayp position) (overlay-start position))
          ((and (integerp position) (>= position 1)) position))))

(qwen-companion-define-tool "symbols"
    ((path path "The file whose functions, classes and variables are listed.")
     (query string "A part of a name: list what matches in the whole project, if a language server runs."))
    "What a file or the project defines."
  :unasked t
  :paged t
  (cond
   (query
    (qwen-companion-tools-read--ask-names
     nil query #'identity #'xref-backend-apropos
     (format "symbol with %s in its name" query)))
   (path (qwen-companion-tools-read--index path))
   (t (user-error "Give path for the symbols of a file, or query for those of the project"))))

;;; Diagnostics

(defun qwen-companion-tools-read--file-problems (buffer)
  "Return the problems in BUFFER as items of an answer."
  (with-current-buffer buffer
    (mapcar (lambda (problem)
              (qwen-companion-diagnostics-place problem buffer-file-name))
            (qwen-companion-problems))))

(defun qwen-companion-tools-read--unchecked (buffer)
  "Return the end of a sentence on an unchecked BUFFER, nil for a checked one."
  (with-current-buffer buffer
    (let ((disabled (qwen-companion-problems-disabled)))
      (cond
       ((or (qwen-companion-problems-pending-p)
            (qwen-companion-servers-unreported-p))
        "has not been checked yet")
       (disabled
        (format "has not been checked by %s, which is disabled in Emacs"
                (string-join disabled ", ")))))))

(defun qwen-companion-tools-read--compile-problems ()
  "Return the problems reported by the last compilation."
  (with-current-buffer (qwen-companion-tools-read--output-buffer)
    (unless (derived-mode-p 'compilation-mode)
      (user-error "The last output in Emacs is not a compilation; call test_output to read it"))
    (compilation--ensure-parse (point-max))
    (let ((position (point-min))
          found)
      (while (< position (point-max))
        (when-let* ((message (get-text-property position 'compilation-message))
                    (location (compilation--message->loc message))
                    (spec (car (compilation--file-struct->file-spec
                                (compilation--loc->file-struct location)))))
          (push (qwen-companion-tools-place
                 (expand-file-name (if (consp spec) (car spec) spec)
                                   (or (cadr (compilation--file-struct->file-spec
                                              (compilation--loc->file-struct location)))
                                       default-directory))
                 (compilation--loc->line location)
                 (compilation--loc->col location)
                 (concat (pcase (compilation--message->type message)
                           (2 "error ") (1 "warning ") (_ "note "))
                         (save-excursion
                           (goto-char position)
                           (buffer-substring-no-properties
                            (line-beginning-position) (line-end-position)))))
                found))
        (setq position (or (next-single-property-change position 'compilation-message)
                           (point-max))))
      (nreverse found))))

(qwen-companion-define-tool "diagnostics"
    ((path path "The file. Without it, all open files of the project.")
     (source (choice "checkers" "compilation") "Whom to ask: what checks files while they are edited (the default), or the last compilation."))
    "Errors and warnings of open files."
  :unasked t
  :paged t
  (cond
   ((equal source "compilation")
    (let ((problems (qwen-companion-tools-read--compile-problems)))
      (or (if path
              (cl-remove-if-not (lambda (place) (equal path (plist-get place :path)))
                                problems)
            problems)
          "The last compilation has reported no problem.")))
   (path
    (with-current-buffer (qwen-companion-tools-buffer path)
      (unless (qwen-companion-problems-checked-p)
        (user-error "Nothing checks %s in Emacs; run a checker yourself" path))
      (let ((unchecked (qwen-companion-tools-read--unchecked (current-buffer))))
        (or (append (qwen-companion-tools-read--file-problems (current-buffer))
                    (and unchecked (list (format "%s %s." path unchecked))))
            (format "No problems in %s." path)))))
   (t
    (let ((checked (cl-remove-if-not
                    (lambda (buffer)
                      (with-current-buffer buffer
                        (qwen-companion-problems-checked-p)))
                    (qwen-companion-tools-read--files))))
      (if checked
          (qwen-companion-tools-read--problems-of-all checked)
        "No open file of the project is checked by Emacs.")))))

(defun qwen-companion-tools-read--problems-of-all (buffers)
  "Return the problems in BUFFERS as an answer, and which have not been checked."
  (let ((problems (mapcan #'qwen-companion-tools-read--file-problems buffers))
        (unchecked (cl-loop for buffer in buffers
                            for text = (qwen-companion-tools-read--unchecked buffer)
                            when text
                            collect (qwen-companion-tools-place
                                     (buffer-file-name buffer) nil nil text))))
    (append
     (or problems
         (and (length> buffers (length unchecked))
              (list (format "No problems in %d open files that Emacs has checked."
                            (- (length buffers) (length unchecked))))))
     unchecked)))

;;; Texts

(qwen-companion-define-tool "buffer_text"
    ((path path "An open file." :required t)
     (start line "The first line, from 1.")
     (end line "The last line."))
    "An open file's text, with unsaved changes.
For files without such changes, read the file instead."
  :unasked t
  (with-current-buffer (qwen-companion-tools-buffer path)
    (qwen-companion-buffers-widened
      (let* ((count (qwen-companion-tools-read--line-count))
             (start (or start 1))
             (last (min count
                        (or end (+ start -1 (car qwen-companion-tools-read--lines)))
                        (+ start -1 (cdr qwen-companion-tools-read--lines)))))
        (when (> start count)
          (user-error "%s has no line %d; the last one is %d" path start count))
        (when (and end (< end start))
          (user-error "The end is before the start"))
        (goto-char (point-min))
        (forward-line (1- start))
        (list (concat
               (format "Lines %d to %d of %d, %s." start last count
                       (if (buffer-modified-p) "with unsaved changes" "as saved"))
               (when (< last count)
                 (format " For more, call again with start %d." (1+ last))))
              (qwen-companion-tools-block
               (buffer-substring-no-properties
                (point)
                (progn (forward-line (- (1+ last) start)) (point)))
               start))))))

(qwen-companion-define-tool "open_files" ()
    "Files open in Emacs, and where the user is."
  :unasked t
  :paged t
  (let ((active (qwen-companion-context-active-file)))
    (or (mapcar
         (lambda (buffer)
           (with-current-buffer buffer
             (qwen-companion-tools-place
              buffer-file-name
              (and (eq buffer active) (line-number-at-pos nil t))
              nil
              (string-join
               (delq nil
                     (list (and (eq buffer active) "the user is here")
                           (and (buffer-modified-p) "unsaved changes")
                           (and (buffer-narrowed-p)
                                (format "narrowed to lines %d to %d"
                                        (line-number-at-pos (point-min) t)
                                        (line-number-at-pos (point-max) t)))
                           (and buffer-read-only "read-only")))
               ", "))))
         (qwen-companion-tools-read--files))
        "No file of the project is open in Emacs.")))

;;; Documentation of a position

(defun qwen-companion-tools-read--documentation (finish)
  "Collect the documentation from eldoc at point.
Call FINISH with a list of strings, once all functions have answered, or
after a timeout.  A second argument is non-nil after the timeout."
  (let ((waiting 0)
        (found nil)
        (timer nil))
    (cl-labels ((end ()
                  (when finish
                    (when timer (cancel-timer timer))
                    (funcall (prog1 finish (setq finish nil))
                             (nreverse found) (> waiting 0))))
                (add (text)
                  (when (and (stringp text) (not (string-blank-p text)))
                    (cl-pushnew (substring-no-properties text) found :test #'equal))))
      (run-hook-wrapped
       'eldoc-documentation-functions
       (lambda (function)
         (let* ((answered nil)
                (value (condition-case nil
                           (funcall function
                                    (lambda (text &rest _)
                                      (unless answered
                                        (setq answered t)
                                        (add text)
                                        (cl-decf waiting)
                                        (when (and timer (<= waiting 0)) (end)))))
                         ;; Others may still answer.
                         (error nil))))
           (cond ((stringp value) (add value))
                 ((and value (not (eq value 'noprint))) (cl-incf waiting))
                 (answered (cl-incf waiting))))
         nil))
      (if (<= waiting 0)
          (end)
        (setq timer (run-at-time qwen-companion-tools-read--hover-wait nil
                                 #'qwen-companion-timers-call #'end))))))

(defun qwen-companion-tools-read--markup (contents)
  "Return the texts in CONTENTS, markup in the language server protocol."
  (cl-remove-if
   #'string-blank-p
   (cl-loop for part in (if (stringp contents) (list contents)
                          (qwen-companion-servers-list contents))
            for text = (if (stringp part) part (qwen-companion-servers-get part :value))
            when (stringp text) collect text)))

(qwen-companion-define-tool "hover"
    ((path path "An open file." :required t)
     (line line "The line, from 1." :required t)
     (symbol string "The name in that line; without it, the first one."))
    "Type and documentation of a name."
  :unasked t
  (with-current-buffer (qwen-companion-tools-buffer path)
    (save-excursion
      (save-restriction
        (qwen-companion-tools-read--go-to path line symbol)
        (qwen-companion-tools-read--later
         (if (qwen-companion-servers-current)
             (apply-partially #'qwen-companion-tools-read--server-hover path line)
           (apply-partially #'qwen-companion-tools-read--eldoc-hover path line)))))))

(defun qwen-companion-tools-read--server-hover (path line answer)
  "Call ANSWER with the server's description of point in the current buffer.
Point is in LINE of PATH.  The eldoc function of eglot would drop the
answer for a buffer that no window shows."
  (let ((name (qwen-companion-servers-name)))
    (qwen-companion-servers-ask
     :textDocument/hover nil
     (lambda (result)
       (funcall answer
                (lambda ()
                  (let ((hover (funcall result)))
                    (or (mapcar #'qwen-companion-tools-block
                                (and hover
                                     (qwen-companion-tools-read--markup
                                      (qwen-companion-servers-get hover :contents))))
                        (format "%s has no description of that position in line %d of %s."
                                name line path)))))))))

(defun qwen-companion-tools-read--eldoc-hover (path line answer)
  "Call ANSWER with the description of point by the functions of eldoc.
Point is in LINE of PATH."
  (qwen-companion-tools-read--documentation
   (lambda (texts late)
     (funcall answer
              (lambda ()
                (cond (texts (mapcar #'qwen-companion-tools-block texts))
                      (late (user-error "No answer about %s within %s seconds"
                                        path qwen-companion-tools-read--hover-wait))
                      (t (user-error "No language server runs for %s, and nothing else in Emacs describes line %d of it"
                                     path line))))))))

;;; Emacs Lisp

(defun qwen-companion-tools-read--lisp-source (file)
  "Return the source of the Lisp FILE, an absolute name, or nil."
  (when (stringp file)
    (let* ((file (if (string-suffix-p ".elc" file) (substring file 0 -1) file))
           (found (if (file-name-absolute-p file)
                      file
                    (locate-file file load-path '(".el" ".el.gz" "")))))
      (cond ((null found) nil)
            ((file-exists-p found) found)
            ((file-exists-p (concat found ".gz")) (concat found ".gz"))))))

(defun qwen-companion-tools-read--lisp-place (symbol file summary)
  "Return the definition of SYMBOL in FILE, as an item of an answer with SUMMARY."
  (when-let* ((source (qwen-companion-tools-read--lisp-source file)))
    (if (qwen-companion-tools-in-scope-p source)
        (qwen-companion-tools-place
         source (qwen-companion-tools-read--lisp-line symbol source) nil summary)
      (format "%s, in the library %s" summary (file-name-base source)))))

(defun qwen-companion-tools-read--lisp-line (symbol source)
  "Return the line of SYMBOL's definition in the file SOURCE, or nil."
  (qwen-companion-tools-read--with-text source
    (goto-char (point-min))
    (when (re-search-forward
           (format "^\\s-*([[:alnum:]-]*def[[:alnum:]-]*\\s-+'?%s\\_>"
                   (regexp-quote (symbol-name symbol)))
           nil t)
      (line-number-at-pos (match-beginning 0) t))))

(defun qwen-companion-tools-read--describe (symbol)
  "Return a description of SYMBOL as items of an answer."
  (append
   (when (fboundp symbol)
     (append
      (list (format "%s is %s: %S" symbol
                    (cond ((commandp symbol) "a command")
                          ((macrop symbol) "a macro")
                          (t "a function"))
                    (cons symbol (help-function-arglist symbol t))))
      (qwen-companion-tools-read--defined symbol 'defun)
      (list (qwen-companion-tools-block
             (or (documentation symbol t) "Not documented.")))))
   (when (or (boundp symbol) (get symbol 'variable-documentation))
     (append
      (list (format "%s is %s." symbol
                    (if (custom-variable-p symbol) "an option" "a variable")))
      (qwen-companion-tools-read--defined symbol 'defvar)
      (list (qwen-companion-tools-block
             (or (documentation-property symbol 'variable-documentation t)
                 "Not documented.")))))
   (when (facep symbol)
     (append
      (list (format "%s is a face." symbol))
      (list (qwen-companion-tools-block
             (or (documentation-property symbol 'face-documentation t)
                 "Not documented.")))))))

(defun qwen-companion-tools-read--defined (symbol kind)
  "Return the definition of SYMBOL as KIND, as items of an answer."
  (when-let* ((place (qwen-companion-tools-read--lisp-place
                      symbol (symbol-file symbol kind) "defined here")))
    (list place)))

(qwen-companion-define-tool "describe"
    ((symbol string "The name of a function, command, variable, option or face of Emacs Lisp." :required t))
    "Documentation of an Emacs Lisp symbol."
  :unasked t
  (or (when-let* ((found (intern-soft symbol)))
        (qwen-companion-tools-read--describe found))
      (let ((near (seq-take (sort (all-completions symbol obarray
                                                   (lambda (each)
                                                     (or (fboundp each) (boundp each))))
                                  (lambda (a b) (< (length a) (length b))))
                            5)))
        (user-error "This Emacs knows no %s%s" symbol
                    (if near (format "; there are %s" (string-join near ", ")) "")))))

;;; Manuals

(defvar Info-directory-list)
(declare-function info-initialize "info" ())

(defun qwen-companion-tools-read--info-files (manual)
  "Return the files of the Info MANUAL, or nil."
  (require 'info)
  (info-initialize)
  (cl-loop for directory in Info-directory-list
           for files = (and (file-directory-p directory)
                            (cl-remove-if-not
                             #'file-regular-p
                             (directory-files
                              directory t
                              (format "\\`%s\\(?:\\.info\\)?\\(?:-[0-9]+\\)?\\(?:\\.gz\\)?\\'"
                                      (regexp-quote manual)))))
           when files return files))

(defun qwen-companion-tools-read--insert-info (file)
  "Insert the text of FILE, of an Info manual, without starting a process."
  (let ((start (point)))
    (insert-file-contents-literally file)
    (goto-char (point-max))
    (when (string-suffix-p ".gz" file)
      (zlib-decompress-region start (point-max)))
    (decode-coding-region start (point-max) 'utf-8)
    (goto-char (point-max))))

(defun qwen-companion-tools-read--search-info (files query node)
  "Return the nodes with QUERY of the Info manual in FILES, or its whole NODE.
They are items of an answer."
  (let ((found nil))
    (dolist (file files)
      (with-temp-buffer
        (set-buffer-multibyte nil)
        (qwen-companion-tools-read--insert-info file)
        (goto-char (point-min))
        (let ((case-fold-search t))
          (while (re-search-forward "^\^_\n.*\\<Node: *\\([^,\n]+\\).*\n" nil t)
            (let ((name (decode-coding-string (match-string 1) 'utf-8))
                  (start (point))
                  (end (save-excursion
                         (if (search-forward "\n\^_" nil t)
                             (match-beginning 0)
                           (point-max)))))
              (cond
               (node
                (when (equal (downcase name) (downcase node))
                  (push (qwen-companion-tools-block
                         (decode-coding-string (buffer-substring start end) 'utf-8))
                        found)))
               ((search-forward (encode-coding-string query 'utf-8) end t)
                (push (cons (if (string-search (downcase query) (downcase name)) 0 1)
                            (format "Node \"%s\": %s" name
                                    (string-trim
                                     (decode-coding-string
                                      (buffer-substring (line-beginning-position)
                                                        (line-end-position))
                                      'utf-8))))
                      found)))
              (goto-char end))))))
    (if node
        (nreverse found)
      (mapcar #'cdr (sort (nreverse found) (lambda (a b) (< (car a) (car b))))))))

(defvar devdocs-data-dir)
(defvar shr-external-rendering-functions)
(defvar shr-inhibit-images)
(defvar shr-use-fonts)
(defvar shr-width)
(declare-function shr-insert-document "shr" (dom))

(defconst qwen-companion-tools-read--page-size 60000
  "Most characters of an HTML page that are read.")

(defun qwen-companion-tools-read--devdocs ()
  "Return the names of the manuals that the user has installed with devdocs."
  (and (bound-and-true-p devdocs-data-dir)
       (not (file-remote-p devdocs-data-dir))
       (file-directory-p devdocs-data-dir)
       (directory-files devdocs-data-dir nil "\\`[^.]")))

(defun qwen-companion-tools-read--search-devdocs (manual query node)
  "Return the entries with QUERY of the devdocs MANUAL, or the entry NODE.
They are items of an answer."
  (let* ((directory (expand-file-name manual devdocs-data-dir))
         (entries (alist-get 'entries
                             (with-temp-buffer
                               (insert-file-contents (expand-file-name "index" directory))
                               (read (current-buffer)))))
         (wanted (downcase (or node query))))
    (cl-loop for entry across entries
             for name = (alist-get 'name entry)
             when (if node
                      (equal wanted (downcase name))
                    (string-search wanted (downcase name)))
             collect (if node
                         (qwen-companion-tools-block
                          (qwen-companion-tools-read--page directory (alist-get 'path entry)))
                       (format "Node \"%s\": %s" name (or (alist-get 'type entry) ""))))))

(defun qwen-companion-tools-read--page (directory path)
  "Return the text at PATH, a page and perhaps an anchor, of a manual in DIRECTORY."
  (require 'shr)
  (pcase-let ((`(,page ,anchor) (split-string path "#")))
    (with-temp-buffer
      (insert-file-contents
       (expand-file-name (url-hexify-string (concat page ".html")) directory))
      (goto-char (point-min))
      (when (and anchor (search-forward (format "id=\"%s\"" anchor) nil t))
        (search-backward "<")
        (delete-region (point-min) (point)))
      (delete-region (min (point-max) (+ (point) qwen-companion-tools-read--page-size))
                     (point-max))
      (let ((dom (libxml-parse-html-region (point-min) (point-max)))
            (shr-external-rendering-functions nil)
            (shr-inhibit-images t)
            (shr-use-fonts nil)
            (shr-width 80))
        (erase-buffer)
        (shr-insert-document dom)
        (string-trim (buffer-string))))))

;; Emacs's own manuals are missing in Debian's package.
(defun qwen-companion-tools-read--manuals (installed)
  "Return the names of manuals to suggest, including some INSTALLED by devdocs."
  (if-let* ((names (append (cl-remove-if-not #'qwen-companion-tools-read--info-files
                                             '("elisp" "emacs" "org" "info" "cl" "eglot"))
                           (seq-take installed 10))))
      (string-join names ", ")
    "none of the usual ones"))

(qwen-companion-define-tool "search_docs"
    ((manual string "The name of an Info manual, such as elisp, emacs or org, or of one that the user has installed with devdocs." :required t)
     (query string "The text to search for.")
     (node string "A section of the manual to read, by its name."))
    "Search or read an Info manual.
Also one installed with devdocs."
  :unasked t
  :paged t
  (unless (or query node)
    (user-error "Give query to search the manual, or node to read a section"))
  (or (if-let* ((files (qwen-companion-tools-read--info-files manual)))
          (qwen-companion-tools-read--search-info files query node)
        (let* ((installed (qwen-companion-tools-read--devdocs))
               ;; With or without its version.
               (found (cl-find-if (lambda (name)
                                    (or (equal manual name)
                                        (string-prefix-p (concat manual "~") name)))
                                  installed)))
          (unless found
            (user-error "Emacs has no manual %s; it has %s" manual
                        (qwen-companion-tools-read--manuals installed)))
          (qwen-companion-tools-read--search-devdocs found query node)))
      (format "No match in the manual %s." manual)))

;;; Output of programs

(defun qwen-companion-tools-read--output-buffer ()
  "Return the buffer with the last output of a compilation or a test run."
  (or (cl-find-if
       (lambda (buffer)
         (with-current-buffer buffer
           (and (derived-mode-p 'compilation-mode 'ert-results-mode)
                (qwen-companion-tools-in-scope-p default-directory))))
       (cl-remove-duplicates
        (delq nil (cons (and (buffer-live-p next-error-last-buffer)
                             next-error-last-buffer)
                        (buffer-list)))
        :from-end t))
      (user-error "No compilation or test has run in Emacs for this project; run it yourself")))

(qwen-companion-define-tool "test_output"
    ((lines integer "How many lines from the end: 60 by default."))
    "End of the last compilation or test run."
  :unasked t
  (with-current-buffer (qwen-companion-tools-read--output-buffer)
    (qwen-companion-buffers-widened
      (let* ((count (qwen-companion-tools-read--line-count))
             (first (max 1 (- (1+ count)
                              (min (max 1 (or lines 60))
                                   (cdr qwen-companion-tools-read--lines)))))
             (process (get-buffer-process (current-buffer))))
        (goto-char (point-min))
        (forward-line (1- first))
        (list (format "%s, %slines %d to %d of %d, in %s:" (buffer-name)
                      (if (process-live-p process) "still running, " "")
                      first count count
                      (abbreviate-file-name default-directory))
              (qwen-companion-tools-block
               (buffer-substring-no-properties (point) (point-max))
               first))))))

(provide 'qwen-companion-tools-read)
;;; qwen-companion-tools-read.el ends here
