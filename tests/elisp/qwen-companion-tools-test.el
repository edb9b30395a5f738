;;; qwen-companion-tools-test.el --- Tests of the tools for models  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Tools are called as the Python process calls them, and their answers are
;; read as they are sent to it.

;;; Code:

(require 'compile)
(require 'eldoc)
(require 'etags)
(require 'flymake)
(require 'qwen-companion-test-helper)

(defvar Info-directory-list)

(defvar qwen-companion-tools-test--id 0)

(defvar eglot-events-buffer-size)

(defun qwen-companion-tools-test--begin (name arguments &optional seconds)
  "Have the tool NAME called with ARGUMENTS; return the number of the call.
Somebody waits for the answer for SECONDS."
  (qwen-companion-tools-on-call
   (list :id (cl-incf qwen-companion-tools-test--id) :name name
         :arguments arguments
         :roots (list (directory-file-name default-directory))
         :deadline (* 1000 (+ (float-time) (or seconds qwen-companion-test-limit)))))
  qwen-companion-tools-test--id)

(defun qwen-companion-tools-test--sent (id)
  "Return the answer to the call ID, nil when there is none yet."
  (cl-find id (qwen-companion-test-sent 'tool-answer)
           :key (lambda (payload) (plist-get payload :id))))

(defun qwen-companion-tools-test--call (name &rest arguments)
  "Return the answer of the tool NAME to ARGUMENTS, names and values.
It is the error, or the items, each (LINE TEXT), (nil TEXT) or TEXT."
  (let* ((id (qwen-companion-tools-test--begin
              name (cl-loop for (key value) on arguments by #'cddr
                            collect (list key value))))
         (answer (qwen-companion-test-wait-for (qwen-companion-tools-test--sent id))))
    (or (plist-get answer :error)
        (mapcar (lambda (item)
                  (if (or (plist-get item :path) (plist-get item :block))
                      (list (plist-get item :line) (plist-get item :text))
                    (plist-get item :text)))
                (plist-get answer :items)))))

;; Most tests are a table of such cases.
(defun qwen-companion-tools-test--expect (&rest cases)
  "Check the answers of tools, each of CASES being (EXPECTED NAME ARGUMENT...).
EXPECTED is a part of the error, or all items, as calling returns them."
  (pcase-dolist (`(,expected ,name . ,arguments) cases)
    (let ((answer (apply #'qwen-companion-tools-test--call name arguments)))
      (if (stringp expected)
          (should (string-search expected answer))
        (should (equal (cons name expected) (cons name answer)))))))

(defun qwen-companion-tools-test--told ()
  "Return the tools that the Python process was told of last."
  (let (qwen-companion-test-calls)
    (qwen-companion-tools-forget)
    (qwen-companion-tools-update)
    (plist-get (car (last (qwen-companion-test-sent 'tools))) :tools)))

(defun qwen-companion-tools-test--unasked-p (name)
  "Say whether the tool NAME runs without a question."
  (plist-get (cl-find name (qwen-companion-tools-test--told) :key (lambda (tool) (plist-get tool :name)) :test #'equal)
             :unasked))

(defmacro qwen-companion-tools-test--with (files &rest body)
  "Run BODY with FILES in a project and a backend that only notes calls."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-files ,files
     (qwen-companion-test-with-backend
       (unwind-protect (progn ,@body)
         (qwen-companion-tools-forget)))))

;;; Defining

(ert-deftest qwen-companion-tools-test-definitions-are-checked ()
  (dolist (wrong '((qwen-companion-define-tool "a b" () "D." nil)
                   (qwen-companion-define-tool "a" () "" nil)
                   (qwen-companion-define-tool "a" ((x number "D.")) "D." nil)
                   (qwen-companion-define-tool "a" ((x (choice 1) "D.")) "D." nil)
                   (qwen-companion-define-tool "a" ((x string)) "D." nil)
                   (qwen-companion-define-tool "a" () "D." :asked t nil)))
    (should-error (macroexpand wrong)))
  (let ((qwen-companion-tools nil)
        (qwen-companion-tools-offered t))
    (eval '(qwen-companion-define-tool "mine"
               ((path path "A file." :required t) (how (choice "a" "b") "How."))
             "Do it."
             :paged t
             path)
          t)
    (should (equal '((:name "mine" :description "Do it."
                            :arguments ((:name "path" :kind path :description "A file." :required t)
                                        (:name "how" :kind string :description "How."
                                               :choices ("a" "b")))
                            :unasked nil :paged t))
                   (qwen-companion-test-with-backend (qwen-companion-tools-test--told))))
    (setq qwen-companion-tools-offered nil)
    (should-not (qwen-companion-test-with-backend (qwen-companion-tools-test--told)))))

;; What the manual shows works as it stands there.
(ert-deftest qwen-companion-tools-test-the-example-of-the-manual ()
  (qwen-companion-tools-test--with
      '(("a.org" "* TODO Plant plums :garden:\n* DONE Water them\n* TODO Sell them\n"))
    (let ((qwen-companion-tools qwen-companion-tools)
          (path (expand-file-name "a.org")))
      (eval (with-temp-buffer
              (insert-file-contents
               (expand-file-name "docs/qwen-companion.org"
                                 (file-name-directory (locate-library "qwen-companion.el"))))
              (search-forward "(qwen-companion-define-tool \"open_tasks\"")
              (goto-char (match-beginning 0))
              (read (current-buffer)))
            t)
      (should-not (qwen-companion-tools-test--unasked-p "open_tasks"))
      (qwen-companion-tools-test--expect `("is not open" "open_tasks" "path" ,path))
      (find-file-noselect path)
      (qwen-companion-tools-test--expect
       `(((1 "TODO Plant plums") (3 "TODO Sell them")) "open_tasks" "path" ,path)
       `(((1 "TODO Plant plums")) "open_tasks" "path" ,path "tag" "garden")))))

(ert-deftest qwen-companion-tools-test-changes-are-told-once ()
  (qwen-companion-tools-test--with nil
    (let ((qwen-companion-tools-offered t))
      (qwen-companion-tools-update)
      (qwen-companion-tools-update)
      (setq qwen-companion-tools-offered '("hover"))
      (qwen-companion-tools-update)
      (let ((sent (qwen-companion-test-sent 'tools)))
        (should (= 2 (length sent)))
        (should (<= 10 (length (plist-get (car sent) :tools))))
        (should (equal "hover" (plist-get (car (plist-get (cadr sent) :tools)) :name)))))))

(ert-deftest qwen-companion-tools-test-the-tools-of-the-package-run-unasked ()
  (qwen-companion-tools-test--with nil
    (should (= 10 (length qwen-companion-tools)))
    (should (cl-every #'qwen-companion-tools-test--unasked-p (mapcar #'car qwen-companion-tools)))))

;;; Calling

(defmacro qwen-companion-tools-test--with-tool (function &rest body)
  "Run BODY with FUNCTION as the tool \"test\"."
  (declare (indent 1) (debug t))
  `(let ((qwen-companion-tools (cons (cons "test" (qwen-companion-tools--make-tool
                                                   :function ,function))
                                     qwen-companion-tools)))
     ,@body))

(ert-deftest qwen-companion-tools-test-nothing-asks ()
  (qwen-companion-tools-test--with nil
    (dolist (ask (list (lambda () (y-or-n-p "? "))
                       (lambda () (read-string "? "))
                       (lambda () (read-char "? "))
                       (lambda () (format "%s" (read-event "? ")))))
      (qwen-companion-tools-test--with-tool ask
        (should (string-search "would have to ask the user"
                               (qwen-companion-tools-test--call "test")))))))

(ert-deftest qwen-companion-tools-test-errors-are-answers ()
  (qwen-companion-tools-test--with nil
    (qwen-companion-tools-test--with-tool (lambda () (error "Odd %s" "thing"))
      (should (equal "Emacs could not do that (Odd thing)." (qwen-companion-tools-test--call "test"))))
    (qwen-companion-tools-test--with-tool (lambda () 7)
      (qwen-companion-tools-test--expect '("Emacs could not do that" "test")))
    (qwen-companion-tools-test--expect '("no longer exists" "gone"))))

(ert-deftest qwen-companion-tools-test-a-process-that-hangs-is-not-waited-for ()
  (qwen-companion-tools-test--with nil
    (let ((qwen-companion-tools--wait 0.05))
      (qwen-companion-tools-test--with-tool
          (lambda () (while t (accept-process-output nil 0.01)))
        (should (string-search "does not answer" (qwen-companion-tools-test--call "test")))))))

(ert-deftest qwen-companion-tools-test-a-key-goes-first ()
  (qwen-companion-tools-test--with nil
    (let ((calls 0)
          (qwen-companion-tools--pause 0.01))
      (qwen-companion-tools-test--with-tool
          (lambda ()
            (when (= 1 (cl-incf calls))
              (throw throw-on-input t))
            "done")
        (should (equal '("done") (qwen-companion-tools-test--call "test")))
        (should (= 2 calls))))))

(ert-deftest qwen-companion-tools-test-a-late-answer-is-about-the-same-files ()
  "A CLI at a place may hear of the same files at once and a moment later."
  (let* ((items '((:text "in" :path "/ssh:far:/project/a" :line 1)
                  (:text "out" :path "/ssh:far:/other/a" :line 1)
                  (:text "elsewhere" :path "/ssh:b:/project/a" :line 1)))
         (default-directory "/ssh:far:/project/")
         (ways (list (lambda () items)
                     (lambda () (lambda (answer) (run-at-time 0 nil answer items)))
                     (lambda () (lambda (answer) (run-at-time 0 nil answer (lambda () items)))))))
    (qwen-companion-test-with-backend
      (unwind-protect
          (dolist (way ways)
            (qwen-companion-tools-test--with-tool way
              (should (equal '((1 "in")) (qwen-companion-tools-test--call "test")))))
        (qwen-companion-tools-forget)))))

;; C-g is for what the user does, and the model gets its answer later.
(ert-deftest qwen-companion-tools-test-a-quit-loses-no-call ()
  (qwen-companion-tools-test--with nil
    (let ((calls 0)
          (qwen-companion-tools--pause 0.01))
      (qwen-companion-tools-test--with-tool
          (lambda ()
            (when (= 1 (cl-incf calls))
              (signal 'quit nil))
            "done")
        (let ((id (qwen-companion-tools-test--begin "test" nil)))
          (should (eq 'quit (condition-case nil
                                (qwen-companion-test-wait-for (qwen-companion-tools-test--sent id))
                              (quit 'quit))))
          (should (equal '(:text "done")
                         (car (plist-get (qwen-companion-test-wait-for
                                          (qwen-companion-tools-test--sent id))
                                         :items))))
          (should (= 2 calls)))))))

(ert-deftest qwen-companion-tools-test-answers-come-once-and-not-after-the-deadline ()
  (qwen-companion-tools-test--with nil
    (qwen-companion-tools-test--with-tool
        (lambda () (lambda (answer) (funcall answer "one") (funcall answer "two")))
      (should (equal '("one") (qwen-companion-tools-test--call "test")))
      (should (= 1 (length (qwen-companion-test-sent 'tool-answer)))))
    (let ((late (qwen-companion-tools-test--begin "open_files" nil -1)))
      (should (qwen-companion-tools-test--call "open_files"))
      (should-not (qwen-companion-tools-test--sent late)))))

(ert-deftest qwen-companion-tools-test-many-calls-are-answered-in-order ()
  (qwen-companion-tools-test--with '(("a.txt" "one\n"))
    (find-file-noselect "a.txt")
    (let ((ids (cl-loop repeat 200
                        collect (qwen-companion-tools-test--begin "open_files" nil))))
      (qwen-companion-test-wait-for (qwen-companion-tools-test--sent (car (last ids))))
      (should (equal ids (mapcar (lambda (payload) (plist-get payload :id))
                                 (qwen-companion-test-sent 'tool-answer)))))))

(ert-deftest qwen-companion-tools-test-large-answers-are-cut ()
  (qwen-companion-tools-test--with nil
    (let ((qwen-companion-tools--limits '(3 . 100)))
      (pcase-dolist (`(,items ,kept ,more) `((,(make-list 10 "x") 3 7)
                                             (,(make-list 3 (make-string 60 ?x)) 1 2)))
        (qwen-companion-tools-test--with-tool (lambda () items)
          (let* ((id (qwen-companion-tools-test--begin "test" nil))
                 (answer (qwen-companion-test-wait-for (qwen-companion-tools-test--sent id))))
            (should (= kept (length (plist-get answer :items))))
            (should (= more (plist-get answer :more)))))))
    (qwen-companion-tools-test--with-tool (lambda () (propertize "\377\x3FFF80 é" 'face 'bold))
      (qwen-companion-tools-test--expect '(("\uFFFD\uFFFD é") "test")))))

;;; Files

(defconst qwen-companion-tools-test--lisp
  ";;; -*- lexical-binding: t -*-\n(defun my-first (x)\n  \"Return X.\"\n  x)\n\n(defvar my-second 2\n  \"The second.\")\n")

(ert-deftest qwen-companion-tools-test-symbols ()
  (qwen-companion-tools-test--with `(("a.el" ,qwen-companion-tools-test--lisp) ("b.txt" "x\n"))
    (let ((path (expand-file-name "a.el"))
          (find-file-hook (list (lambda () (error "It was visited")))))
      ;; A file that is not open, and is not opened.
      (let ((emacs-lisp-mode-hook (list (lambda () (error "A hook was run")))))
        (qwen-companion-tools-test--expect `(((2 "my-first") (6 "Variables > my-second")) "symbols" "path" ,path))
        (should-not (get-file-buffer path)))
      (setq find-file-hook nil)
      (with-current-buffer (find-file-noselect path)
        (goto-char (point-min))
        (insert "\n\n")
        (narrow-to-region (point) (point-max))
        (qwen-companion-tools-test--expect `(((4 "my-first") (8 "Variables > my-second")) "symbols" "path" ,path)))
      (qwen-companion-tools-test--expect `("cannot list the definitions" "symbols" "path" ,(expand-file-name "b.txt"))
                                         '("Give path" "symbols")))))

(ert-deftest qwen-companion-tools-test-buffer-text ()
  (qwen-companion-tools-test--with '(("a.txt" "one\ntwo\nthree\n") ("b.txt" ""))
    (let ((path (expand-file-name "a.txt"))
          (empty (expand-file-name "b.txt")))
      (qwen-companion-tools-test--expect `("not open in Emacs; read it from the disk" "buffer_text" "path" ,path))
      (with-current-buffer (find-file-noselect path)
        (goto-char (point-min))
        (insert "zero\n")
        (narrow-to-region 1 3))
      (find-file-noselect empty)
      (qwen-companion-tools-test--expect
       `(("Lines 1 to 4 of 4, with unsaved changes." (1 "zero\none\ntwo\nthree\n"))
         "buffer_text" "path" ,path)
       `(("Lines 2 to 3 of 4, with unsaved changes. For more, call again with start 4."
          (2 "one\ntwo\n"))
         "buffer_text" "path" ,path "start" 2 "end" 3)
       `("has no line 5; the last one is 4" "buffer_text" "path" ,path "start" 5)
       `("before" "buffer_text" "path" ,path "start" 3 "end" 2)
       `(("Lines 1 to 1 of 1, as saved." (1 "")) "buffer_text" "path" ,empty))
      (with-current-buffer (get-file-buffer path)
        (set-buffer-modified-p nil)
        (qwen-companion-privacy-set-exposure (current-buffer) 'hide))
      (qwen-companion-tools-test--expect `("has hidden" "buffer_text" "path" ,path)))))

;;; Files that are not for the CLI

(defconst qwen-companion-tools-test--questions
  '(("buffer_text" "path" t)
    ("definition" "symbol" "hushed" "path" t "line" 2)
    ("definition" "symbol" "hushed" "path" t)
    ("definition" "symbol" "hushed")
    ("describe" "symbol" "hushed")
    ("diagnostics" "path" t)
    ("diagnostics")
    ("diagnostics" "path" t "source" "compilation")
    ("diagnostics" "source" "compilation")
    ("hover" "path" t "line" 2)
    ("open_files")
    ("references" "symbol" "hushed" "path" t "line" 2)
    ("references" "symbol" "hushed" "path" t)
    ("search_docs" "manual" t "query" "hushed")
    ("symbols" "path" t)
    ("symbols" "query" "hush")
    ("test_output"))
  "Ways to ask each tool about a file; t is its name.")

(ert-deftest qwen-companion-tools-test-each-tool-leaves-out-hidden-files ()
  "No tool tells of a file that the user hides, or of a remote one."
  (should (equal (sort (mapcar #'car qwen-companion-tools) #'string<)
                 (delete-dups (mapcar #'car qwen-companion-tools-test--questions))))
  (qwen-companion-tools-test--with
      '(("hidden.el" ";;; -*- lexical-binding: t -*-\n(defun hushed () 'inner)\n(hushed)\n"))
    (let ((path (expand-file-name "hidden.el"))
          (remote "/ssh:nowhere:/w/remote.el")
          (next-error-last-buffer nil))
      (with-current-buffer (find-file-noselect path) (setq qwen-companion-exposure 'hide))
      (with-current-buffer (get-buffer-create " *qwen-companion remote*")
        ;; Eglot, where it is loaded, looks for a project in a new mode.
        (emacs-lisp-mode)
        (let ((file-name-handler-alist nil))
          (insert-file-contents path nil nil nil t)
          (setq buffer-file-name remote
                buffer-file-truename remote
                default-directory "/ssh:nowhere:/w/")))
      (unwind-protect
          (dolist (name (list path remote))
            (with-current-buffer (qwen-companion-tools-test--visiting name)
              (setq-local flymake-diagnostic-functions
                          (list (lambda (report &rest _)
                                  (funcall report (list (flymake-make-diagnostic
                                                         (current-buffer) 1 5 :error
                                                         "Bad inner"))))))
              (setq-local eldoc-documentation-functions (list (lambda (_) "of inner")))
              (flymake-mode)
              (flymake-start))
            (dolist (question qwen-companion-tools-test--questions)
              (let ((answer (format "%S" (apply #'qwen-companion-tools-test--call
                                                (cl-subst name t question)))))
                (should-not (string-match-p "inner\\|(2 " answer)))))
        (with-current-buffer (qwen-companion-tools-test--visiting remote)
          (flymake-mode -1)
          (set-buffer-modified-p nil)
          (setq buffer-file-name nil)
          (kill-buffer))))))

(defun qwen-companion-tools-test--visiting (path)
  "Return the buffer that visits PATH, which may be remote."
  (cl-find path (buffer-list) :key #'buffer-file-name :test #'equal))

(ert-deftest qwen-companion-tools-test-open-files ()
  (qwen-companion-tools-test--with '(("a.txt" "one\ntwo\n") ("b.txt" "x\n") ("c.txt" "x\n"))
    (with-current-buffer (find-file-noselect "b.txt") (insert "y"))
    (with-current-buffer (find-file-noselect "c.txt") (setq qwen-companion-exposure 'hide))
    (let ((elsewhere (make-temp-file "qwen-companion-elsewhere-")))
      (unwind-protect
          (progn
            (find-file-noselect elsewhere)
            (save-window-excursion
              (switch-to-buffer (find-file-noselect "a.txt"))
              (goto-char (point-max))
              (narrow-to-region (point-min) 4)
              (qwen-companion-test-context-update)
              (should (equal '((1 "the user is here, narrowed to lines 1 to 1")
                               (nil "unsaved changes"))
                             (qwen-companion-tools-test--call "open_files")))))
        (delete-file elsewhere)))))

(ert-deftest qwen-companion-tools-test-definition-and-references ()
  (qwen-companion-tools-test--with
      `(("a.el" ,(concat qwen-companion-tools-test--lisp "(my-first my-second)\n"))
        ("b.py" "def f():\n    pass\n"))
    (let ((path (expand-file-name "a.el"))
          (python (expand-file-name "b.py")))
      (qwen-companion-tools-test--expect `("is not open in Emacs" "definition" "symbol" "my-first" "path" ,path))
      (with-current-buffer (find-file-noselect path) (eval-buffer))
      (find-file-noselect python)
      (qwen-companion-tools-test--expect
       `(((2 "(defun my-first)")) "definition" "symbol" "my-first" "path" ,path "line" 8)
       `(((6 "(defvar my-second)")) "definition" "symbol" "my-second" "path" ,path)
       `("There is no my-third in line 8" "definition" "symbol" "my-third" "path" ,path "line" 8)
       `("has no line 99" "definition" "symbol" "my-first" "path" ,path "line" 99)
       ;; Without a tags table, etags would ask for one.
       `("No language server runs" "definition" "symbol" "f" "path" ,python))
      ;; That would be a search by a program.
      (let ((exec-path nil))
        (qwen-companion-tools-test--expect
         `("no more than a search in files" "references" "symbol" "my-first" "path" ,path))))
    (fmakunbound 'my-first)
    (makunbound 'my-second)))

(cl-defmethod xref-backend-identifier-at-point ((_ (eql qwen-companion-tools-test)))
  (thing-at-point 'symbol))
(cl-defmethod xref-backend-references ((_ (eql qwen-companion-tools-test)) identifier)
  (list (xref-make (concat "use of " identifier)
                   (xref-make-file-location (expand-file-name "b.py") 3 2))
        (xref-make (concat "use of " identifier)
                   (xref-make-file-location (expand-file-name ".env") 1 0))))
(cl-defmethod xref-backend-definitions ((_ (eql qwen-companion-tools-test)) identifier)
  (when (equal identifier "f")
    (list (xref-make "def f"
                     (xref-make-file-location (expand-file-name "b.py") 1 0)))))
(cl-defmethod xref-backend-apropos ((_ (eql qwen-companion-tools-test)) _pattern)
  (list (xref-make "like f"
                   (xref-make-file-location (expand-file-name "b.py") 1 0))))

(ert-deftest qwen-companion-tools-test-a-language-server-is-asked ()
  (qwen-companion-tools-test--with '(("a.py" "f()\n") ("b.py" "def f():\n    pass\n    f()\n"))
    (let ((qwen-companion-tools-servers '(qwen-companion-tools-test))
          (path (expand-file-name "a.py"))
          (other (expand-file-name "b.py")))
      (with-current-buffer (find-file-noselect path)
        (setq-local xref-backend-functions (list (lambda () 'qwen-companion-tools-test))))
      (qwen-companion-tools-test--expect
       `(((3 "use of f") (1 "use of f")) "references" "symbol" "f" "path" ,path "line" 1)
       ;; About a file that is not open, a backend knows names only.
       `("is not open in Emacs" "references" "symbol" "f" "path" ,other)
       `(((1 "def f")) "definition" "symbol" "f" "path" ,other)
       '(("The backend qwen-companion-tools-test of Emacs knows no definition of lik.")
         "definition" "symbol" "lik")
       '(((1 "like f")) "symbols" "query" "g"))
      (should-not (get-file-buffer other)))))

(ert-deftest qwen-companion-tools-test-a-real-language-server-is-asked ()
  ;; A part of Emacs since 29; before that, it comes from a package of Debian.
  (skip-unless (qwen-companion-test-load 'eglot))
  (let ((qwen-companion-tools--wait qwen-companion-test-limit)
        (qwen-companion-servers--wait qwen-companion-test-limit)
        ;; Else waiting would not read keys, as it does where there is a user.
        (noninteractive nil))
    (qwen-companion-tools-test--with
        '(("a.py" "def greet(name):\n    \"\"\"Greet NAME.\"\"\"\n    return name\n\n\nprint(greet(1))\n\n\ngreet_all = [greet(1)]\n")
          ("b.py" "from a import greet\n\ngreet(2)\n"))
      (with-current-buffer (find-file-noselect "a.py")
        (qwen-companion-test-eglot "pyright-langserver" "--stdio")
        (let ((path buffer-file-name))
          (qwen-companion-tools-test--expect
           `(((1 "def greet(name):")) "definition" "symbol" "greet" "path" ,path "line" 6)
           ;; Not the line of another definition that has the name in it.
           '(((1 "def greet(name):")) "definition" "symbol" "greet")
           '(("The language server for python knows no definition of gree.")
             "definition" "symbol" "gree"))
          (let ((found (qwen-companion-tools-test--call
                        "references" "symbol" "greet" "path" path "line" 1)))
            (should (member '(6 "print(greet(1))") found))
            (should (member '(3 "greet(2)") found)))
          (let ((found (qwen-companion-tools-test--call "symbols" "path" path)))
            (should (member '(1 "greet (function)") found))
            (should (member '(9 "greet_all (variable)") found)))
          (should (string-search "Greet NAME."
                                 (cadar (qwen-companion-tools-test--call
                                         "hover" "path" path "line" 6 "symbol" "greet")))))
        ;; Eglot ends a server also when it is too busy to answer in time.
        (ignore-error jsonrpc-error (kill-buffer))))))

(ert-deftest qwen-companion-tools-test-many-symbols-of-a-server-come-in-slices ()
  "Between them Emacs handles keys."
  (skip-unless (qwen-companion-test-load 'eglot))
  (qwen-companion-tools-test--with '(("a.py" "x = 1\n"))
    (with-current-buffer (find-file-noselect "a.py")
      (qwen-companion-test-language-server
       :capabilities '(:documentSymbolProvider t)
       :answers (list :textDocument/documentSymbol
                      (list :result (vconcat (cl-loop for line below 100
                                                      for range = (list :start (list :line line :character 0)
                                                                        :end (list :line line :character 1))
                                                      collect (list :name (format "f%d" line) :kind 12
                                                                    :range range :selectionRange range))))))
      (let ((qwen-companion-tools-read--slice 0))
        (qwen-companion-test-counting slices 'qwen-companion-timers-call
          (let ((found (qwen-companion-tools-test--call "symbols" "path" buffer-file-name)))
            (should (equal '(1 "f0 (function)") (car found)))
            (should (equal '(100 "f99 (function)") (car (last found)))))
          (should (< 90 slices))))
      ;; In a long text, imenu does it where eglot would print the answer into a log.
      (erase-buffer)
      (insert (make-string 20000 ?\n) "def last():\n    pass\n")
      (let ((eglot-events-buffer-size 1000)
            (emacs-version "28.2"))
        (qwen-companion-tools-test--expect
         `(((20001 "last (def)")) "symbols" "path" ,buffer-file-name)))
      (set-buffer-modified-p nil)
      (ignore-error jsonrpc-error (kill-buffer)))))

(ert-deftest qwen-companion-tools-test-a-server-without-an-answer-is-not-one-that-found-nothing ()
  (skip-unless (qwen-companion-test-load 'eglot))
  (let ((qwen-companion-servers--wait 0.2))
    (qwen-companion-tools-test--with '(("a.py" "greet(1)\n") ("b.el" "(my-unloaded)\n"))
      (find-file-noselect "b.el")
      (with-current-buffer (find-file-noselect "a.py")
        (qwen-companion-test-language-server
         :capabilities '(:definitionProvider t :referencesProvider t :hoverProvider t)
         :answers '(:textDocument/references (:error (:code -1 :message "Odd"))
                                             :textDocument/hover (:result :null)))
        (let ((path buffer-file-name))
          (qwen-companion-tools-test--expect
           `("has not answered within" "definition" "symbol" "greet" "path" ,path "line" 1)
           `("failed to answer (Odd)" "references" "symbol" "greet" "path" ,path "line" 1)
           `("does not support textDocument/documentSymbol" "symbols" "path" ,path)
           '("does not support workspace/symbol" "symbols" "query" "greet")
           '("has loaded no definition of nobody" "definition" "symbol" "nobody")
           `("has loaded no definition of my-unloaded"
             "definition" "symbol" "my-unloaded" "path" ,(expand-file-name "b.el")))
          ;; This is what it has said.
          (should (string-search "has no description of that position"
                                 (car (qwen-companion-tools-test--call "hover" "path" path "line" 1)))))
        (ignore-error jsonrpc-error (kill-buffer))))))

(ert-deftest qwen-companion-tools-test-hover ()
  (qwen-companion-tools-test--with '(("a.txt" "alpha beta\n"))
    (let ((path (expand-file-name "a.txt"))
          (qwen-companion-tools-read--hover-wait 0.05))
      (with-current-buffer (find-file-noselect path)
        (cl-flet ((says (expected functions &rest more)
                    (setq-local eldoc-documentation-functions functions)
                    (qwen-companion-tools-test--expect `(,expected "hover" "path" ,path "line" 1 ,@more))))
          (says '((nil "at once: beta") (nil "later"))
                (list (lambda (_) (concat "at once: " (thing-at-point 'word)))
                      (lambda (answer)
                        (run-at-time 0 nil answer (propertize "later" 'face 'bold))
                        t)
                      (lambda (_) nil)
                      (lambda (_) (error "Broken")))
                "symbol" "beta")
          ;; One that never answers.
          (says "No answer about" (list (lambda (_) t)))
          (says "nothing else in Emacs describes line 1" nil))))))

(ert-deftest qwen-companion-tools-test-diagnostics ()
  (qwen-companion-tools-test--with '(("a.txt" "one\ntwo\n") ("b.txt" "x\n"))
    (let ((path (expand-file-name "a.txt"))
          (other (expand-file-name "b.txt")))
      (with-current-buffer (find-file-noselect path)
        (setq-local flymake-diagnostic-functions (list #'qwen-companion-tools-test--check))
        (flymake-mode)
        (qwen-companion-tools-test--expect
         `((,(format "%s has not been checked yet." path)) "diagnostics" "path" ,path)
         '(((nil "has not been checked yet")) "diagnostics"))
        (flymake-start)
        (qwen-companion-tools-test--expect
         `(((2 "error: Bad two (qwen-companion-tools-test-check)") (1 "note: Odd one (qwen-companion-tools-test-check)"))
           "diagnostics" "path" ,path))
        (should (equal 2 (length (qwen-companion-tools-test--call "diagnostics"))))
        ;; Emacs disables one that fails, as 30 does with the compiler of Lisp in a file not trusted.
        (add-hook 'flymake-diagnostic-functions #'qwen-companion-tools-test--broken-check nil t)
        (flymake-start)
        (let ((unchecked "has not been checked by qwen-companion-tools-test-broken-check, which is disabled in Emacs"))
          (should (member (format "%s %s." path unchecked)
                          (qwen-companion-tools-test--call "diagnostics" "path" path)))
          (erase-buffer)
          (flymake-start)
          (qwen-companion-tools-test--expect
           `((,(format "%s %s." path unchecked)) "diagnostics" "path" ,path)
           `(((nil ,unchecked)) "diagnostics")))
        (set-buffer-modified-p nil)
        (flymake-mode -1))
      (find-file-noselect other)
      (qwen-companion-tools-test--expect `("Nothing checks" "diagnostics" "path" ,other)
                                         '(("No open file of the project is checked by Emacs.") "diagnostics")))))

(defun qwen-companion-tools-test--check (report &rest _)
  "Report to REPORT, a function of flymake, each line of the current buffer."
  (funcall report
           (save-excursion
             (goto-char (point-min))
             (cl-loop while (re-search-forward "one\\|two\\|three" nil t)
                      collect (flymake-make-diagnostic
                               (current-buffer) (match-beginning 0) (match-end 0)
                               (if (equal (match-string 0) "one") :note :error)
                               (concat (if (equal (match-string 0) "one") "Odd " "Bad ")
                                       (match-string 0)))))))

(defun qwen-companion-tools-test--broken-check (&rest _)
  "Fail, as a checker of flymake."
  (error "Broken"))

(ert-deftest qwen-companion-tools-test-output-and-problems-of-a-compilation ()
  (qwen-companion-tools-test--with '(("a.c" "x\n"))
    (let ((next-error-last-buffer nil))
      (qwen-companion-tools-test--expect '("No compilation" "test_output"))
      (with-current-buffer (get-buffer-create "*qwen-companion test compilation*")
        (setq default-directory directory)
        (insert "cc a.c\na.c:1:2: error: no such thing\na.c:1: warning: odd\nexit 1\n")
        (compilation-mode)
        (setq next-error-last-buffer (current-buffer)))
      (qwen-companion-tools-test--expect
       '(((1 "error a.c:1:2: error: no such thing") (1 "warning a.c:1: warning: odd"))
         "diagnostics" "source" "compilation"))
      (let ((answer (qwen-companion-tools-test--call "test_output" "lines" 2)))
        (should (string-search "lines 3 to 4 of 4" (car answer)))
        (should (equal '(3 "a.c:1: warning: odd\nexit 1\n") (cadr answer))))
      ;; That of another project is none of this one's business.
      (with-current-buffer "*qwen-companion test compilation*" (setq default-directory "/"))
      (qwen-companion-tools-test--expect '("No compilation" "test_output")))))

(ert-deftest qwen-companion-tools-test-describe ()
  (qwen-companion-tools-test--with `(("a.el" ,qwen-companion-tools-test--lisp))
    (with-current-buffer (find-file-noselect "a.el")
      (set-visited-file-modtime)
      (load buffer-file-name nil t))
    (qwen-companion-tools-test--expect
     '(("my-first is a function: (my-first x)" (2 "defined here") (nil "Return X."))
       "describe" "symbol" "my-first")
     '("there are my-first" "describe" "symbol" "my-firs"))
    ;; A value may be a secret.
    (set (intern "my-second") "the value")
    (cl-flet ((described (symbol) (format "%S" (qwen-companion-tools-test--call "describe" "symbol" symbol))))
      (should-not (string-search "the value" (described "my-second")))
      (should (string-search "in the library files" (described "find-file"))))
    (fmakunbound 'my-first)
    (makunbound 'my-second)))

(ert-deftest qwen-companion-tools-test-search-docs ()
  (require 'info)
  (qwen-companion-tools-test--with
      '(("own.info" "This is own.info.\n\n\^_\nFile: own.info,  Node: Top,  Next: Part\n\nThe top.\n\n\^_\nFile: own.info,  Node: Part,  Prev: Top\n\nAbout zebras and é.\nMore.\n\^_\nEnd\n"))
    (let ((Info-directory-list (list default-directory)))
      (should (equal '((nil "\nAbout zebras and é.\nMore."))
                     (mapcar (lambda (item) (list (car item) (cadr item)))
                             (qwen-companion-tools-test--call
                              "search_docs" "manual" "own" "node" "part"))))
      (qwen-companion-tools-test--expect
       '(("Node \"Part\": About zebras and é.") "search_docs" "manual" "own" "query" "ZEBRA")
       '(("No match in the manual own.") "search_docs" "manual" "own" "query" "lion")
       ;; Not one that is not there, as that of Emacs Lisp here.
       '("Emacs has no manual elisp; it has none of the usual ones."
         "search_docs" "manual" "elisp" "query" "x")
       '("no manual other" "search_docs" "manual" "other" "query" "x")
       '("Give query" "search_docs" "manual" "own")))))

(defvar devdocs-data-dir)

(ert-deftest qwen-companion-tools-test-search-docs-of-devdocs ()
  (skip-unless (libxml-available-p))
  (qwen-companion-tools-test--with
      '(("docs/own~3/index"
         "((entries . [((name . \"zebra.run()\") (path . \"animals/zebra#run\") (type . \"Animals\"))
                       ((name . \"lion\") (path . \"lion\") (type . nil))])
           (pages . [\"animals/zebra\" \"lion\"]))")
        ("docs/own~3/animals%2Fzebra.html"
         "<h1>Zebra</h1><p>Stripes.</p><h2 id=\"run\">run</h2><p>Run <b>away</b>.</p>"))
    (let ((Info-directory-list nil))
      (qwen-companion-tools-test--expect '("Emacs has no manual own; it has none of the usual ones."
                                           "search_docs" "manual" "own" "query" "zebra"))
      (let ((devdocs-data-dir (expand-file-name "docs")))
        (dolist (manual '("own" "own~3"))
          (qwen-companion-tools-test--expect
           `(("Node \"zebra.run()\": Animals") "search_docs" "manual" ,manual "query" "ZEBRA")))
        (qwen-companion-tools-test--expect
         '(((nil "run\n\nRun away.")) "search_docs" "manual" "own" "node" "zebra.run()")
         '(("No match in the manual own.") "search_docs" "manual" "own" "query" "cat"))
        ;; Nothing outside of the installed manuals is read.
        (dolist (manual '("." ".." "../docs/own~3" "other"))
          (qwen-companion-tools-test--expect `("it has own~3" "search_docs" "manual" ,manual "query" "zebra")))))))

(provide 'qwen-companion-tools-test)
;;; qwen-companion-tools-test.el ends here
