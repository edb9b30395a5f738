;;; qwen-companion-tools.el --- Tools that models may call  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A tool is a function that a model calls through its CLI, as
;; `mcp__emacs__NAME'.  The Python process checks the arguments, and removes
;; the contents of files that the CLI may not see from answers.  This file
;; calls the function.  The built-in tools are in
;; `qwen-companion-tools-read.el'.  The manual has an example of a user's own.
;;
;; A tool runs from a timer.  The user's next key interrupts it, and it is
;; called again a moment later; so it should read and change nothing.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-messages)
(require 'qwen-companion-places)
(require 'qwen-companion-privacy)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

(defun qwen-companion-tools--set (option value)
  "Set OPTION to VALUE and send it to the Python process."
  (set-default option value)
  (when (fboundp 'qwen-companion-tools-update)
    (qwen-companion-tools-update)))

(defcustom qwen-companion-tools-offered t
  "Tools of `qwen-companion-tools' that are offered to CLIs.
If t, all; if nil, none; else those with the names in the list.  A CLI
lists the tools once, when it starts, and finds them by the settings layer
only; see `qwen-companion-settings-layer'."
  :group 'qwen-companion
  :set #'qwen-companion-tools--set
  :type '(choice (const :tag "All" t)
                 (const :tag "None" nil)
                 (repeat :tag "Those with these names" string)))

(defcustom qwen-companion-tell-problems 'errors
  "Kinds of problems that are reported to the model whose edit caused them.
After an agent's edit of a file that is open in Emacs and checked by
flymake or flycheck, its model gets the new problems: only errors, all, or
none.  The agent waits for the checkers, for 1.5 seconds at most.  This
needs Qwen Code 0.15 or later."
  :group 'qwen-companion
  :set #'qwen-companion-tools--set
  :type '(choice (const :tag "Errors" errors)
                 (const :tag "All problems" all)
                 (const :tag "Nothing" nil)))

(defcustom qwen-companion-tell-unsaved t
  "Whether prompts tell models which open files have unsaved text.
Errors in the file in focus are included too, unless
`qwen-companion-tell-problems' is nil."
  :group 'qwen-companion
  :set #'qwen-companion-tools--set
  :type 'boolean)

(defconst qwen-companion-tools--wait 2
  "Seconds that a tool may wait for another process.")

(defconst qwen-companion-tools--pause 0.2
  "Seconds before a tool that a key interrupted is called again.")

(defconst qwen-companion-tools--limits '(500 . 40000)
  "Most items of an answer that are sent, and characters of their texts.")

(cl-defstruct (qwen-companion-tools--tool
               (:constructor qwen-companion-tools--make-tool)
               (:copier nil))
  "A tool.  ARGUMENTS are property lists (:name :kind :description ...).
FUNCTION is called with their values, nil for one that was not given."
  description arguments function unasked paged)

(defvar qwen-companion-tools nil
  "Alist of the tools that models may call: (NAME . TOOL).
Add one with `qwen-companion-define-tool'; to remove one, delete its
element, or set `qwen-companion-tools-offered'.")

(defvar qwen-companion-tools-reports nil
  "Alist (NAME . FUNCTION) of reports that Emacs sends to models unasked.
A function gets the arguments of the call, a list of names and values, and
returns the same kinds of values as the function of a tool.")

(defvar qwen-companion-tools--directories nil
  "During a call, the directories that the calling CLI may see, t for all.")
(defvar qwen-companion-tools--queue nil
  "The queued calls, oldest first: payloads of the `tool-call' message.")
(defvar qwen-companion-tools--timer nil
  "Timer that runs the next call, nil if none is queued.")
(defvar qwen-companion-tools--sent nil
  "The payload of the last `tools' message, nil before the first.")

;;; Definitions

(defmacro qwen-companion-define-tool (name arguments description &rest body)
  "Let models call the tool NAME, a string of letters, digits and underscores.
ARGUMENTS are elements (VARIABLE KIND DESCRIPTION), with `:required t' at
the end for one that must be given.  KIND is one of

  string, integer, boolean
  path       the absolute name of a file that the CLI may see
  line       a number from 1
  (choice \"a\" \"b\")  one of these strings.

The model knows the argument by the name of VARIABLE, which is nil in
BODY when it was not given.  DESCRIPTION tells the model what the tool is
for.  BODY may begin with these keywords:

  :unasked t  the CLI may call the tool without asking the user;
  :paged t    the value is a list, which the model gets in parts.

The value of BODY is one of

  a string
  a list of strings, and of values of `qwen-companion-tools-place' and
    `qwen-companion-tools-block'
  a function of one argument, for an answer that takes time.

That argument is a function, to be called within a few seconds with a
string, a list as above, or a function that returns one of these.  A
`user-error' tells the model what to do instead."
  (declare (indent 2) (doc-string 3))
  (let (options)
    (while (keywordp (car body))
      (setq options (plist-put options (pop body) (pop body))))
    (unless (and (stringp name) (string-match-p "\\`[A-Za-z][A-Za-z0-9_]*\\'" name))
      (error "Not a name of a tool: %S" name))
    (unless (and (stringp description) (not (string-empty-p description)))
      (error "The tool %s has no description" name))
    (cl-loop for option in options by #'cddr
             unless (memq option '(:unasked :paged))
             do (error "The tool %s has an unknown option %s" name option))
    `(setf (alist-get ,name qwen-companion-tools nil nil #'equal)
           (qwen-companion-tools--make-tool
            :description ,description
            :arguments ',(mapcar (apply-partially
                                  #'qwen-companion-tools--argument name)
                                 arguments)
            :unasked ,(plist-get options :unasked)
            :paged ,(plist-get options :paged)
            :function (lambda ,(mapcar #'car arguments) ,@body)))))

(eval-and-compile
  (defun qwen-companion-tools--argument (tool argument)
    "Return ARGUMENT of the definition of TOOL as a property list."
    (pcase argument
      (`(,(and (pred symbolp) variable) ,kind ,(and (pred stringp) description)
         . ,options)
       (pcase kind
         (`(choice . ,(and (pred consp) choices))
          (unless (cl-every #'stringp choices)
            (error "A choice of the tool %s is not a string" tool)))
         ((guard (memq kind '(string integer boolean path line))))
         (_ (error "The tool %s has an argument of unknown kind %S" tool kind)))
       (append (list :name (symbol-name variable)
                     :kind (if (consp kind) 'string kind)
                     :description description)
               (and (plist-get options :required) '(:required t))
               (and (consp kind) (list :choices (cdr kind)))))
      (_ (error "Not an argument of the tool %s: %S" tool argument)))))

(defun qwen-companion-tools-place (path line column text)
  "Return TEXT, about LINE and COLUMN of the file PATH, as an item of an answer.
LINE and COLUMN count from 1 and may be nil.  The model does not get it if
the CLI may not see that file."
  (append (list :path (if (qwen-companion-places-remote-p path) path (expand-file-name path)) :text text)
          (and line (list :line line))
          (and column (list :column column))))

(defun qwen-companion-tools-block (text &optional line)
  "Return TEXT, quoted from a file or from elsewhere, as an item of an answer.
Number its lines from LINE if that is non-nil, else mark them."
  (append (list :text text :block t)
          (and line (list :line line))))

(defun qwen-companion-tools-buffer (path)
  "Return the buffer that visits the file PATH, or signal a `user-error'."
  (or (qwen-companion-tools-visiting path)
      (user-error "%s is not open in Emacs; read it from the disk" path)))

(defun qwen-companion-tools-visiting (path)
  "Return the buffer that visits the file PATH, nil if there is none.
Signal a `user-error' if the user has hidden it."
  (when-let* ((buffer (qwen-companion-buffers-visiting path)))
    (when (qwen-companion-privacy-secret-p buffer)
      (user-error "The user has hidden %s" path))
    buffer))

(defun qwen-companion-tools-in-scope-p (name)
  "Return non-nil if the file or directory NAME is in the CLI's scope.
Exclusions of single files are not checked here."
  (and name
       (if (eq t qwen-companion-tools--directories)
           ;; Only files of this machine.
           (not (qwen-companion-places-remote-p name))
         (cl-some (lambda (directory)
                    (qwen-companion-untrusted-in-directory-p name directory))
                  qwen-companion-tools--directories))))

;;; Offered tools

(defun qwen-companion-tools--definitions ()
  "Return the offered tools, for the Python process."
  (cl-loop for (name . tool) in (reverse qwen-companion-tools)
           when (or (eq t qwen-companion-tools-offered)
                    (member name qwen-companion-tools-offered))
           collect (list :name name
                         :description (qwen-companion-tools--tool-description tool)
                         :arguments (qwen-companion-tools--tool-arguments tool)
                         :unasked (qwen-companion-tools--tool-unasked tool)
                         :paged (qwen-companion-tools--tool-paged tool))))

(defun qwen-companion-tools-update ()
  "Send the list of tools to the Python process, if it has changed."
  (let ((payload (list :tools (qwen-companion-tools--definitions)
                       :after-edits (and qwen-companion-tell-problems t)
                       :with-prompts (and qwen-companion-tell-unsaved t))))
    (setq qwen-companion-tools--sent
          (qwen-companion-backend-call-if-changed
           'tools payload qwen-companion-tools--sent))))

(defun qwen-companion-tools-resend ()
  "Send the list of tools to a new Python process."
  (setq qwen-companion-tools--sent nil)
  (qwen-companion-tools-update))

(defun qwen-companion-tools-forget ()
  "Drop the queue."
  (qwen-companion-timers-cancel qwen-companion-tools--timer)
  (setq qwen-companion-tools--queue nil
        qwen-companion-tools--sent nil))

;;; Calls

(defun qwen-companion-tools-on-call (payload)
  "Handle the `tool-call' message PAYLOAD: answer a model.
Do that in a timer: it may take long, and this is a process filter."
  (setq qwen-companion-tools--queue
        (nconc qwen-companion-tools--queue (list payload)))
  (qwen-companion-tools--run-later 0)
  nil)

(defun qwen-companion-tools--run-later (seconds)
  "Run the next call in SECONDS, unless one is due."
  (unless qwen-companion-tools--timer
    (setq qwen-companion-tools--timer
          (run-at-time seconds nil #'qwen-companion-tools--run-next))))

(defun qwen-companion-tools--run-next ()
  "Run the next call that still needs an answer."
  (setq qwen-companion-tools--timer nil)
  (when-let* ((call (pop qwen-companion-tools--queue)))
    (let ((pause 0))
      (unwind-protect
          (when (< (* 1000 (float-time)) (qwen-companion-tool-call-deadline call))
            (pcase (qwen-companion-untrusted-until-input (qwen-companion-tools--evaluate call))
              (`(done . ,payload)
               (when payload
                 (qwen-companion-backend-call 'tool-answer payload)))
              ;; The user's input comes first.
              (_ (push call qwen-companion-tools--queue)
                 (setq pause qwen-companion-tools--pause))))
        (when qwen-companion-tools--queue
          (qwen-companion-tools--run-later pause))))))

(defun qwen-companion-tools--evaluate (call)
  "Return the answer to CALL, (done . PAYLOAD), or nil if it comes later."
  (let ((id (qwen-companion-tool-call-id call)))
    (cons 'done
          (qwen-companion-tools--protected id
            (lambda ()
              (let* ((qwen-companion-tools--directories
                      (or (qwen-companion-tool-call-everywhere call)
                          (qwen-companion-tool-call-roots call)))
                     (value (qwen-companion-tools--apply call)))
                (if (functionp value)
                    (qwen-companion-tools--start id value)
                  (qwen-companion-tools--answer id value))))))))

(defun qwen-companion-tools--apply (call)
  "Call the function of the tool that CALL names, and return its value."
  (let* ((name (qwen-companion-tool-call-name call))
         (given (qwen-companion-tool-call-arguments call))
         (report (alist-get name qwen-companion-tools-reports nil nil #'equal))
         (tool (alist-get name qwen-companion-tools nil nil #'equal)))
    (cond (report (funcall report given))
          (tool (apply (qwen-companion-tools--tool-function tool)
                       (mapcar (lambda (argument)
                                 (cadr (assoc (plist-get argument :name) given)))
                               (qwen-companion-tools--tool-arguments tool))))
          (t (user-error "This tool no longer exists")))))

(defun qwen-companion-tools--protected (id function)
  "Return the value of FUNCTION, or the answer that the call ID has failed.
FUNCTION cannot ask the user, and is interrupted if it waits too long."
  (declare (indent 1))
  (let ((inhibit-interaction t)
        (inhibit-message t)
        (message-log-max nil)
        (non-essential t)
        (enable-local-variables nil)
        (enable-dir-local-variables nil)
        (use-dialog-box nil))
    (save-match-data
      (save-current-buffer
        (condition-case err
            (with-timeout
                (qwen-companion-tools--wait
                 (qwen-companion-tools--failure
                  id "A language server or another process does not answer.  Continue without this"))
              (funcall function))
          (inhibited-interaction
           (qwen-companion-tools--failure
            id "Emacs would have to ask the user for that, which tools may not do"))
          (user-error
           (qwen-companion-tools--failure id (error-message-string err)))
          (error
           (qwen-companion-tools--failure
            id (format "Emacs could not do that (%s)" (error-message-string err)))))))))

(defun qwen-companion-tools--failure (id text)
  "Return the answer that the call ID has failed, for the reason TEXT."
  (list :id id
        :error (qwen-companion-tools--text
                (concat text (unless (string-suffix-p "." text) ".")))))

(defun qwen-companion-tools--start (id function)
  "Call FUNCTION, which answers the call ID through its argument, a function.
Return nil."
  (let ((pending t)
        (directories qwen-companion-tools--directories))
    (funcall function
             (lambda (value)
               (when pending
                 (setq pending nil)
                 (qwen-companion-backend-call
                  'tool-answer
                  (qwen-companion-tools--protected id
                    (lambda ()
                      (let ((qwen-companion-tools--directories directories))
                        (qwen-companion-tools--answer
                         id (if (functionp value) (funcall value) value)))))))))
    nil))

(defun qwen-companion-tools--answer (id value)
  "Return a tool's VALUE as the answer to the call ID."
  (pcase-let ((`(,most . ,room) qwen-companion-tools--limits)
              ;; Most long answers are about one file.
              (path nil)
              (hides nil)
              (hidden 0)
              (more 0)
              (sent nil))
    (dolist (item (if (listp value) value (list value)))
      (let ((about (and (consp item) (plist-get item :path))))
        (unless (equal path about)
          (setq path about
                hides (and about (qwen-companion-tools--hidden-p about)))))
      (if hides
          (cl-incf hidden)
        (let ((item (and (> most 0) (qwen-companion-tools--item item))))
          (if (and item (or (not sent) (>= room (length (plist-get item :text)))))
              (progn (cl-decf most)
                     (cl-decf room (length (plist-get item :text)))
                     (push item sent))
            (setq most 0)
            (cl-incf more)))))
    (list :id id :items (nreverse sent) :more more :hidden hidden)))

(defun qwen-companion-tools--item (item)
  "Return ITEM of an answer as a property list for the Python process."
  (let ((item (if (stringp item) (list :text item) item)))
    (unless (stringp (plist-get item :text))
      (error "A tool has returned no text: %S" (type-of item)))
    (when-let* ((path (plist-get item :path)))
      (unless (qwen-companion-backend-unicode-p path)
        (setq item (plist-put (copy-sequence item) :path
                              (qwen-companion-tools--text path)))))
    (plist-put (copy-sequence item) :text
               (qwen-companion-tools--text
                (let ((text (plist-get item :text)))
                  (substring text 0 (min (length text)
                                         (cdr qwen-companion-tools--limits))))))))

(defun qwen-companion-tools--text (text)
  "Return TEXT without properties and with Unicode characters only."
  (replace-regexp-in-string qwen-companion-backend-not-unicode "\uFFFD"
                            (substring-no-properties
                             (if (multibyte-string-p text)
                                 text
                               (decode-coding-string text 'utf-8-unix t)))
                            t t))

(defun qwen-companion-tools--hidden-p (path)
  "Return non-nil if PATH, a file in an answer, is hidden by the user."
  (or (and (qwen-companion-places-remote-p path) (not (qwen-companion-tools-in-scope-p path)))
      (when-let* ((buffer (qwen-companion-places-visiting path)))
        (qwen-companion-privacy-secret-p buffer))))

(provide 'qwen-companion-tools)
;;; qwen-companion-tools.el ends here
