;;; servers.el --- The tools for models against real language servers  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `make servers'.  Calls each tool that asks a language server, in an Emacs
;; that could ask its user, and compares the answer with what the server says
;; when it is asked by itself.  Then breaks and mends a file twenty times, as
;; an agent does, and counts of how many of the errors a model is told.  Shows
;; a row for each tool, and ends with status 1 if one differs.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion)
(require 'qwen-companion-test-helper)

(declare-function eglot-current-server "ext:eglot" ())
(declare-function jsonrpc-request "jsonrpc" t t)
(declare-function eglot "ext:eglot" t)
(declare-function eglot--capabilities "ext:eglot" (server) t)
(declare-function eglot--guess-contact "ext:eglot" (&optional interactive))
(declare-function lsp--workspace-server-capabilities "ext:lsp-mode" (workspace) t)
(declare-function lsp "ext:lsp-mode" (&optional arg))
(declare-function lsp-register-client "ext:lsp-mode" (client))
(declare-function lsp-request "ext:lsp-mode" (method params &rest args))
(declare-function lsp-stdio-connection "ext:lsp-mode" (command &optional test))
(declare-function lsp-workspace-folders-add "ext:lsp-mode" (project-root))
(declare-function lsp-workspaces "ext:lsp-mode" ())
(declare-function make-lsp-client "ext:lsp-mode" (&rest slots))

(defconst servers-bench--rounds 20 "How often a file is broken and mended.")

(defconst servers-bench--python
  '(("shop.py" "\"\"\"A shop that knows greet.\"\"\"


class Shop:
    \"\"\"Sells.\"\"\"

    def price(self, apples):
        \"\"\"Return the price of APPLES.\"\"\"
        return 2 * apples


def greet(name):
    \"\"\"Greet NAME, as greet_all does.\"\"\"
    return \"hello \" + name


greet_all = [greet(name) for name in (\"a\", \"b\")]
")
    ("use.py" "from shop import Shop, greet


print(greet(\"x\"), Shop().price(3))
# pyright: standard
"))
  "Files of a project in Python, the one that uses names last.")

(defconst servers-bench--c
  '(("shop.c" "/* A shop that knows greet. */
#include \"shop.h\"

int greet(int name) { return name; }
int greet_all(void) { return greet(1) + greet(2); }
")
    ("shop.h" "int greet(int name);
int greet_all(void);
")
    ("use.c" "#include \"shop.h\"

int main(void) {
    return greet(3);
}
"))
  "Files of a project in C, the one that uses names last.")

(defvar servers-bench--failed nil "Non-nil when an answer differs.")
(defvar servers-bench--name nil "What is being measured.")

(defun servers-bench--say (format &rest arguments)
  "Write a line, FORMAT with ARGUMENTS, to the standard error."
  (princ (concat (apply #'format format arguments) "\n") #'external-debugging-output))

(defun servers-bench--row (what good remark)
  "Write a row about WHAT, with REMARK; it failed unless GOOD."
  (unless good (setq servers-bench--failed t))
  (servers-bench--say "| %s | %s | %s | %s |" servers-bench--name what
                      (if good "same" "DIFFERS") remark))

;;; The server by itself

(defun servers-bench--direct (method parameters)
  "Return the answer of the server of this buffer to METHOD with PARAMETERS."
  (if (bound-and-true-p lsp-managed-mode)
      (lsp-request (substring (symbol-name method) 1) parameters)
    (jsonrpc-request (eglot-current-server) method parameters :timeout 60)))

(defun servers-bench--get (object key &rest keys)
  "Return what is in OBJECT, of JSON, at KEY, and at KEYS in that."
  (let ((value (if (hash-table-p object)
                   (gethash (substring (symbol-name key) 1) object)
                 (plist-get object key))))
    (if keys (apply #'servers-bench--get value keys) value)))

(defun servers-bench--list (value)
  "Return VALUE, one object of JSON or several, as a list."
  (if (or (hash-table-p value) (keywordp (car-safe value)))
      (list value)
    (append value nil)))

(defun servers-bench--place (object)
  "Return FILE:LINE of OBJECT, a location or a symbol with one."
  (let ((location (or (servers-bench--get object :location) object)))
    (format "%s:%d"
            (file-name-nondirectory
             (or (servers-bench--get location :uri) (servers-bench--get location :targetUri)
                 buffer-file-name))
            (1+ (servers-bench--get
                 (or (servers-bench--get location :selectionRange)
                     (servers-bench--get location :targetSelectionRange)
                     (servers-bench--get location :range))
                 :start :line)))))

(defun servers-bench--at (word)
  "Return the parameters of a question about WORD in this buffer."
  (save-excursion
    (goto-char (point-min))
    (re-search-forward (format "\\_<%s(" word))
    (goto-char (match-beginning 0))
    (list :textDocument (list :uri (concat "file://" (file-truename buffer-file-name)))
          :position (list :line (1- (line-number-at-pos)) :character (current-column)))))

(defun servers-bench--symbols (found)
  "Return the symbols in FOUND, of JSON, and those below them."
  (cl-loop for each in (servers-bench--list found)
           collect each
           append (servers-bench--symbols (servers-bench--get each :children))))

(defun servers-bench--capable-p (key)
  "Return non-nil when the server says that it has the capability KEY."
  (let ((value (servers-bench--get
                (if (bound-and-true-p lsp-managed-mode)
                    (lsp--workspace-server-capabilities (car (lsp-workspaces)))
                  (eglot--capabilities (eglot-current-server)))
                key)))
    (and value (not (eq value :json-false)))))

;;; The tools

(defvar servers-bench--id 0)

(defun servers-bench--call (name &rest arguments)
  "Return (MS . ANSWER) of the tool NAME called with ARGUMENTS, names and values.
ANSWER is the error or the items."
  (let ((start (float-time)))
    (qwen-companion-tools-on-call
     (list :id (cl-incf servers-bench--id) :name name
           :arguments (cl-loop for (key value) on arguments by #'cddr
                               collect (list key value))
           :roots (list (directory-file-name default-directory))
           :deadline (* 1000 (+ start 60))))
    (let ((answer (qwen-companion-test-wait-for
                   (cl-find servers-bench--id (qwen-companion-test-sent 'tool-answer)
                            :key (lambda (payload) (plist-get payload :id))))))
      (cons (* 1000 (- (float-time) start))
            (or (plist-get answer :error) (plist-get answer :items))))))

(defun servers-bench--places (answer)
  "Return the places in ANSWER, FILE:LINE each."
  (cl-loop for item in answer
           when (plist-get item :path)
           collect (format "%s:%s" (file-name-nondirectory (plist-get item :path))
                           (plist-get item :line))))

(defun servers-bench--compare (what expected called)
  "Compare EXPECTED, a list of places, or a regexp for a text, with CALLED."
  (pcase-let* ((`(,ms . ,answer) called)
               (text (if (stringp answer) answer
                       (mapconcat (lambda (item) (plist-get item :text)) answer "\n")))
               (good (if (stringp expected)
                         (and (string-match-p expected text) t)
                       (and (listp answer)
                            (equal (seq-sort #'string< (seq-uniq expected))
                                   (seq-sort #'string< (seq-uniq (servers-bench--places answer))))))))
    (servers-bench--row what good
                        (if good
                            (format "%s, %d ms" (if (stringp expected) text
                                                  (format "%d places" (length expected)))
                                    ms)
                          (format "expected %S, got %S" expected
                                  (if (stringp answer) answer
                                    (or (servers-bench--places answer) text)))))))

(defun servers-bench--tools (use shop)
  "Compare the answers of tools about USE and SHOP, names of open files."
  (with-current-buffer (get-file-buffer use)
    (let ((names (servers-bench--capable-p :workspaceSymbolProvider)))
      (cl-flet ((ask (method &optional more)
                  (mapcar #'servers-bench--place
                          (servers-bench--list
                           (servers-bench--direct method (append (servers-bench--at "greet") more)))))
                (named (query test)
                  (cl-loop for each in (servers-bench--list
                                        (servers-bench--direct :workspace/symbol (list :query query)))
                           when (funcall test (servers-bench--get each :name))
                           collect (servers-bench--place each))))
        (servers-bench--compare
         "definition at a place" (ask :textDocument/definition)
         (servers-bench--call "definition" "symbol" "greet" "path" use "line" 4))
        (servers-bench--compare
         "references" (ask :textDocument/references '(:context (:includeDeclaration t)))
         (servers-bench--call "references" "symbol" "greet" "path" use "line" 4))
        (servers-bench--compare
         "hover"
         (regexp-quote
          (car (split-string
                (let ((contents (servers-bench--get
                                 (servers-bench--direct :textDocument/hover (servers-bench--at "greet"))
                                 :contents)))
                  (if (stringp contents) contents (servers-bench--get contents :value)))
                "\n")))
         (servers-bench--call "hover" "symbol" "greet" "path" use "line" 4))
        (servers-bench--compare
         "definition by name"
         (if names (named "greet" (apply-partially #'equal "greet"))
           "search the files")
         (servers-bench--call "definition" "symbol" "greet"))
        (servers-bench--compare
         "definition of nothing"
         (if names "knows no definition" "search the files")
         (servers-bench--call "definition" "symbol" "gree"))
        (servers-bench--compare
         "symbols of the project"
         (if names (named "greet" #'always) "search the files")
         (servers-bench--call "symbols" "query" "greet"))
        (servers-bench--compare
         "diagnostics" "No problems\\|not been checked"
         (servers-bench--call "diagnostics" "path" use)))))
  (with-current-buffer (get-file-buffer shop)
    (servers-bench--compare
     "symbols of a file"
     (mapcar #'servers-bench--place
             (servers-bench--symbols
              (servers-bench--direct
               :textDocument/documentSymbol
               (list :textDocument (plist-get (servers-bench--at "greet") :textDocument)))))
     (servers-bench--call "symbols" "path" shop))))

(defun servers-bench--etags (use shop)
  "Compare the answers of tools about USE and SHOP with a tags table."
  (call-process "etags" nil nil nil (file-name-nondirectory shop))
  (defvar tags-file-name)
  (setq tags-file-name (expand-file-name "TAGS"))
  (let ((line (with-current-buffer (get-file-buffer shop)
                (goto-char (point-min))
                (re-search-forward "^\\(def\\|int\\) greet(")
                (line-number-at-pos))))
    (dolist (arguments `(("path" ,use "line" 4) ()))
      (servers-bench--compare
       (if arguments "definition at a place" "definition by name")
       (list (format "%s:%d" (file-name-nondirectory shop) line))
       (apply #'servers-bench--call "definition" "symbol" "greet" arguments))))
  (servers-bench--compare "definition of nothing" "tags table"
                          (servers-bench--call "definition" "symbol" "nothing"))
  (servers-bench--compare "references" "no more than a search in files"
                          (servers-bench--call "references" "symbol" "greet" "path" use)))

;;; New errors

(defvar servers-bench--followed nil
  "Milliseconds from each write to the change of the buffer.")

(defun servers-bench--edit (text)
  "Write TEXT to the file of this buffer, as Qwen Code does, and follow it.
Return (MS . ITEMS), what the model is told."
  (qwen-companion-diagnostics-on-edit-begins (list :path buffer-file-name))
  (let* ((coding-system-for-write 'utf-8-unix)
         (start (float-time))
         (followed (lambda (&rest _)
                     (push (* 1000 (- (float-time) start)) servers-bench--followed))))
    (write-region text nil (concat buffer-file-name ".tmp") nil 'silent)
    (rename-file (concat buffer-file-name ".tmp") buffer-file-name t)
    (add-hook 'after-revert-hook followed nil t)
    (unwind-protect
        (servers-bench--call "new-problems" "path" buffer-file-name)
      (remove-hook 'after-revert-hook followed t))))

(defun servers-bench--follow ()
  "Let the current buffer follow its file, as with a CLI connected."
  (setq qwen-companion-roots--answer
        (list :roots (list (directory-file-name default-directory))))
  (setf (qwen-companion-backend--server-sessions qwen-companion-backend--server)
        '((:id "1")))
  (fset 'qwen-companion-merge-texts #'qwen-companion-test-merge-now)
  (qwen-companion-follow-enable)
  (qwen-companion-follow-update)
  (qwen-companion-test-wait-for qwen-companion-follow--link))

(defun servers-bench--errors (use)
  "Break and mend the file USE, and count what a model is told."
  (with-current-buffer (get-file-buffer use)
    (servers-bench--follow)
    (let* ((good (buffer-string))
           (bad (string-replace "greet(" "greet((" good))
           (told 0) (quiet 0) (took nil))
      (dotimes (_ servers-bench--rounds)
        (pcase-let ((`(,ms . ,items) (servers-bench--edit bad)))
          (push ms took)
          (when (cl-some (lambda (item) (string-prefix-p "error" (plist-get item :text)))
                         (and (listp items) items))
            (cl-incf told)))
        (pcase-let ((`(,ms . ,items) (servers-bench--edit good)))
          (push ms took)
          (unless items (cl-incf quiet))))
      (servers-bench--row "new errors"
                          (= servers-bench--rounds told quiet)
                          (format "%d of %d told, %d of %d mended ones silent, %d ms at most; followed after %d ms, at most %d"
                                  told servers-bench--rounds quiet servers-bench--rounds
                                  (apply #'max took)
                                  (/ (apply #'+ servers-bench--followed)
                                     (max 1 (length servers-bench--followed)))
                                  (apply #'max 0 servers-bench--followed))))))

;;; All together

(defun servers-bench--connect (client server names)
  "Open the files NAMES; have CLIENT, \"eglot\" or \"lsp-mode\", ask SERVER."
  (let* ((here (expand-file-name "../.build/" (file-name-directory (locate-library "servers"))))
         (command (pcase server
                    ("pyright"
                     (list (expand-file-name "venv/bin/pyright-langserver" here) "--stdio"))
                    ("basedpyright"
                     (list (expand-file-name "servers/bin/basedpyright-langserver" here) "--stdio"))
                    (_ (list (expand-file-name (concat "servers/bin/" server) here))))))
    (if (equal client "eglot")
        (progn
          (unless (qwen-companion-test-load 'eglot)
            (error "There is no eglot"))
          (defvar eglot-server-programs)
          (defvar eglot-sync-connect)
          (defvar project-find-functions)
          (setq eglot-server-programs
                (list (cons '(python-mode python-ts-mode c-mode) command))
                eglot-sync-connect t
                ;; Git would be asked about a project that has no commits.
                project-find-functions nil)
          (with-current-buffer (find-file-noselect (car names))
            (apply #'eglot (eglot--guess-contact))))
      (setq load-path (append (file-expand-wildcards
                               (expand-file-name "servers/usr/share/emacs/site-lisp/elpa-src/*" here))
                              load-path))
      ;; What the autoloads of the package would load.
      (dolist (library '(lsp-mode lsp-diagnostics lsp-modeline lsp-headerline lsp-completion lsp-lens))
        (require library))
      (defvar lsp-client-packages)
      (defvar lsp-auto-guess-root)
      (defvar lsp-enable-snippet)
      (setq lsp-client-packages nil lsp-auto-guess-root t lsp-enable-snippet nil)
      (lsp-register-client
       (make-lsp-client :new-connection (lsp-stdio-connection command)
                        :major-modes '(python-mode c-mode) :server-id 'servers-bench))
      (lsp-workspace-folders-add (directory-file-name default-directory)))
    (dolist (name names)
      (with-current-buffer (find-file-noselect name)
        (when (equal client "lsp-mode")
          (lsp))
        (qwen-companion-test-wait-for
         (and (or (bound-and-true-p lsp-managed-mode) (bound-and-true-p eglot--managed-mode))
              (bound-and-true-p flymake-mode)))
        (flymake-start)))))

(defun servers-bench (client server)
  "Measure SERVER, asked by way of CLIENT, and end Emacs."
  (let ((servers-bench--name (format "%s | %s | %s" emacs-version client server))
        (files (if (equal server "clangd") servers-bench--c servers-bench--python)))
    (condition-case err
        (qwen-companion-test-with-files files
          (qwen-companion-test-with-backend
            (let* ((names (mapcar (lambda (file) (expand-file-name (car file))) files))
                   (shop (car names)) (use (car (last names))))
              (if (equal client "etags")
                  (progn
                    (mapc #'find-file-noselect names)
                    (servers-bench--etags use shop))
                (servers-bench--connect client server names)
                (servers-bench--tools use shop)
                (servers-bench--errors use)))))
      (error (servers-bench--row "all" nil (format "%S" err)))))
  (mapc #'delete-process (process-list))
  (kill-emacs (if servers-bench--failed 1 0)))

(provide 'servers)
;;; servers.el ends here
