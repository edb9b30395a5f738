;;; qwen-companion-inspector.el --- Inspect the context sent to each CLI  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The context inspector: a buffer that shows, live, the last report to each
;; connected CLI, and the open files hidden from CLIs, each with the rule.
;;
;; The Python process reports only while that buffer exists, and nothing is
;; drawn while no window shows it.
;;
;; Names, rules and selections are untrusted and shown as plain text.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-context)
(require 'qwen-companion-header)
(require 'qwen-companion-items)
(require 'qwen-companion-layer)
(require 'qwen-companion-messages)
(require 'qwen-companion-places)
(require 'qwen-companion-privacy)
(require 'qwen-companion-roots)
(require 'qwen-companion-spool)
(require 'qwen-companion-terminal)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

(defface qwen-companion-inspector-heading
  '((t :inherit (bold font-lock-keyword-face)))
  "Face of the name of a CLI and of other headings."
  :group 'qwen-companion)

(defface qwen-companion-inspector-label
  '((t :inherit shadow))
  "Face of notes about a CLI or a file."
  :group 'qwen-companion)

(defface qwen-companion-inspector-active
  '((t :inherit bold))
  "Face of the active file in the context of a CLI."
  :group 'qwen-companion)

(defface qwen-companion-inspector-text
  '((t :inherit font-lock-string-face))
  "Face of the selection and the JSON sent to a CLI."
  :group 'qwen-companion)

(defface qwen-companion-inspector-warning
  '((t :inherit warning))
  "Face of warnings, such as about unsaved or truncated text."
  :group 'qwen-companion)

(defconst qwen-companion-inspector--buffer-name "*qwen-companion context*")

(defconst qwen-companion-inspector--delay 0.1
  "Seconds during which changes are collected before the buffer is redrawn.")

(defconst qwen-companion-inspector--tick-seconds 1
  "Seconds between two updates of the ages.")

(defconst qwen-companion-inspector--head '(3 . 240)
  "How much of a selection is shown at first: (LINES . CHARACTERS).")

(defvar qwen-companion-inspector--buffer nil
  "The inspector, nil when there is none.")

(defvar-local qwen-companion-inspector--reports nil
  "Alist of session ids and the last reports to their CLIs.")
(defvar-local qwen-companion-inspector--answers nil
  "Alist of session ids and the answers to their hooks, newest first.")
(defvar-local qwen-companion-inspector--calls nil
  "The calls of tools by models, newest first.")
(defvar-local qwen-companion-inspector--exclusions nil
  "The files hidden from CLIs: property lists (:path :rule :session).")
;;; Reports of the Python process

(defmacro qwen-companion-inspector--with-buffer (&rest body)
  "Run BODY in the inspector if there is one."
  (declare (indent 0) (debug t))
  `(qwen-companion-buffers-when-live qwen-companion-inspector--buffer
     ,@body))

(defun qwen-companion-inspector-on-context-sent (payload)
  "Handle the `context-sent' message PAYLOAD: a report to a session's CLI.
Keep it with the exact JSON as :json, and the same on many lines as :pretty."
  (let ((report (append (list :json (qwen-companion-spool-text payload)
                              :pretty (qwen-companion-spool-text
                                       (qwen-companion-context-sent-context payload)))
                        payload)))
    (qwen-companion-inspector--with-buffer
      (setf (alist-get (qwen-companion-context-sent-session payload)
                       qwen-companion-inspector--reports nil nil #'equal)
            report)
      (qwen-companion-inspector--redraw-soon)))
  nil)

(defun qwen-companion-inspector-on-hook-answers (payload)
  "Handle the `hook-answers' message PAYLOAD: answers to hooks."
  (qwen-companion-inspector--with-buffer
    (setf (alist-get (qwen-companion-hook-answers-session payload)
                     qwen-companion-inspector--answers nil nil #'equal)
          (qwen-companion-hook-answers-answers payload))
    (qwen-companion-inspector--redraw-soon))
  nil)

(defun qwen-companion-inspector-on-exclusions (payload)
  "Handle the `exclusions' message PAYLOAD: the files hidden from CLIs."
  (qwen-companion-inspector--with-buffer
    (setq qwen-companion-inspector--exclusions
          (qwen-companion-exclusion-list-exclusions payload))
    (qwen-companion-inspector--redraw-soon))
  nil)

(defconst qwen-companion-inspector--call-limit 30
  "Maximum number of listed tool calls.")

(defun qwen-companion-inspector-on-tool-called (payload)
  "Handle the `tool-called' message PAYLOAD: list a model's call of a tool.
Keep it with the answer as :answer.  The Python process reports the last
calls again on request."
  (let ((call (append (list :answer (qwen-companion-spool-text payload)) payload)))
    (qwen-companion-inspector--with-buffer
      (unless (qwen-companion-inspector--call-with (qwen-companion-inspector--call-key call))
        (setq qwen-companion-inspector--calls
              (seq-take (cons call qwen-companion-inspector--calls)
                        qwen-companion-inspector--call-limit))
        (qwen-companion-inspector--redraw-soon))))
  nil)

(defun qwen-companion-inspector--call-with (key)
  "Return the listed call with KEY, or nil."
  (cl-find key qwen-companion-inspector--calls
           :key #'qwen-companion-inspector--call-key :test #'equal))

(defun qwen-companion-inspector--call-key (payload)
  "Return the key of the call of a tool in PAYLOAD."
  (list (qwen-companion-tool-called-called payload)
        (qwen-companion-tool-called-request payload)
        (qwen-companion-tool-called-ms payload)))

(defun qwen-companion-inspector-changed (&rest _)
  "Redraw after a CLI has connected or disconnected, or the state has changed."
  (qwen-companion-inspector--with-buffer
    (setq qwen-companion-inspector--reports
          (cl-delete-if-not #'qwen-companion-backend-session
                            qwen-companion-inspector--reports :key #'car)
          qwen-companion-inspector--answers
          (cl-delete-if-not #'qwen-companion-backend-session
                            qwen-companion-inspector--answers :key #'car))
    (qwen-companion-inspector--redraw-soon)))

;;; Texts

(defun qwen-companion-inspector--label (session)
  "Return the name of the CLI of SESSION."
  (let ((name (qwen-companion-untrusted-text
               (string-trim (concat (qwen-companion-session-client session) " "
                                    (qwen-companion-session-version session))))))
    (if (string-empty-p name) "Unnamed CLI" name)))

(defun qwen-companion-inspector--age (milliseconds now)
  "Return how long MILLISECONDS is before NOW, in seconds, as text."
  (qwen-companion-layer-duration (- now (/ milliseconds 1000.0))))

(defun qwen-companion-inspector--short (path &optional roots)
  "Return PATH for a reader: below the only one of ROOTS, else abbreviated."
  (let ((root (and (consp roots) (null (cdr roots))
                   (file-name-as-directory (car roots)))))
    (qwen-companion-untrusted-text
     (cond ((and root (string-prefix-p root path))
            (substring path (length root)))
           ((qwen-companion-places-of path)
            (qwen-companion-places-abbreviate path))
           (t
            (let ((directory-abbrev-alist nil)
                  (file-name-handler-alist nil))
              (abbreviate-file-name path)))))))

(defun qwen-companion-inspector--head (text)
  "Return the part of TEXT for a folded selection."
  (pcase-let* ((`(,lines . ,characters) qwen-companion-inspector--head)
               (end -1))
    (while (and end (> lines 0))
      (setq end (string-search "\n" text (1+ end)))
      (cl-decf lines))
    (substring text 0 (min (or end (length text)) characters (length text)))))

;;; Items

(defun qwen-companion-inspector--folded-p (key by-default)
  "Return non-nil when the item KEY is folded, as it is BY-DEFAULT or not."
  (xor by-default (member key qwen-companion-items-toggled)))

(defun qwen-companion-inspector--section (key by-default line body &optional end)
  "Return the item KEY: LINE, and the value of BODY unless it is folded.
The form is (KEY . TEXT), and ends with the string END if that is non-nil.
BY-DEFAULT is non-nil for an item that the user has to unfold."
  (let ((folded (qwen-companion-inspector--folded-p key by-default)))
    (cons key (concat line
                      (when folded (qwen-companion-inspector--annotate " ..."))
                      "\n"
                      (unless folded (funcall body))
                      end))))

(defun qwen-companion-inspector--annotate (text)
  "Return TEXT in the face of labels."
  (propertize text 'face 'qwen-companion-inspector-label))

(defun qwen-companion-inspector--link (text face)
  "Return TEXT in FACE as a link."
  (propertize text 'face face 'mouse-face 'highlight 'follow-link t))

(defun qwen-companion-inspector--block (text)
  "Return TEXT, of one line or more, set off from the text around it."
  (propertize (concat text "\n")
              'face 'qwen-companion-inspector-text
              'line-prefix "      "
              'wrap-prefix "      "))

(defun qwen-companion-inspector--field (name &rest values)
  "Return NAME and VALUES, strings or nil, as a line without its end."
  (concat "  " (qwen-companion-inspector--annotate (format "%-12s" name))
          (apply #'concat values)))

(defun qwen-companion-inspector--items ()
  "Return all items: a list of (KEY . TEXT)."
  (let ((sessions (qwen-companion-backend-sessions))
        (buffers (qwen-companion-inspector--file-buffers))
        (now (float-time)))
    (append
     (qwen-companion-inspector--state-items sessions)
     (mapcan (lambda (session)
               (qwen-companion-inspector--session-items session buffers now))
             sessions)
     (qwen-companion-inspector--call-items now)
     (mapcan #'qwen-companion-inspector--exclusion-items
             (cons nil sessions)))))

(defun qwen-companion-inspector--file-buffers ()
  "Return a hash table of the names of visited files and their buffers."
  (let ((buffers (make-hash-table :test #'equal)))
    (dolist (buffer (buffer-list) buffers)
      (when-let* ((file (buffer-local-value 'buffer-file-name buffer)))
        (puthash file buffer buffers)))))

(defun qwen-companion-inspector--state-items (sessions)
  "Return the items about the companion's state, given its SESSIONS."
  (when-let* ((text (pcase (qwen-companion-state)
                      ('error (concat "The companion is not running: "
                                      (qwen-companion-backend-failure)))
                      ((and 'starting (guard sessions))
                       "The Python process is restarting; this is the context sent before.")
                      ('starting "The companion is starting.")
                      ((guard sessions) nil)
                      (_ (concat "No CLI is connected.  "
                                 (or (qwen-companion-roots-unreachable)
                                     (substitute-command-keys
                                      "\\[qwen-companion-run] starts one here; in another terminal, start one in a project that is open in Emacs.")))))))
    (list (cons '(state)
                (concat (propertize (qwen-companion-untrusted-text text)
                                    'face 'qwen-companion-inspector-warning)
                        "\n\n")))))

(defun qwen-companion-inspector--session-items (session buffers now)
  "Return the items about SESSION.
BUFFERS are those of the visited files, NOW the time in seconds."
  (let* ((id (qwen-companion-session-id session))
         (key (list 'session id))
         (report (qwen-companion-inspector--report-of id))
         (answers (cdr (assoc id qwen-companion-inspector--answers)))
         (context (and report (qwen-companion-context-sent-context report)))
         (folded (qwen-companion-inspector--folded-p key nil)))
    (cons
     (qwen-companion-inspector--section
      key nil
      (qwen-companion-inspector--link (qwen-companion-inspector--label session)
                                      'qwen-companion-inspector-heading)
      (lambda () (qwen-companion-inspector--facts session report context now))
      (and (or folded (not (or report answers))) "\n"))
     (unless folded
       (append
        (when context
          (qwen-companion-inspector--file-items
           id report (qwen-companion-told-context-files context) buffers now))
        (when answers
          (list (qwen-companion-inspector--answers-item id answers now (null report))))
        (when report
          (list (qwen-companion-inspector--json-item id report))))))))

(defun qwen-companion-inspector--report-of (id)
  "Return the last report to the CLI of the session ID, or nil."
  (cdr (assoc id qwen-companion-inspector--reports)))

(defun qwen-companion-inspector--roots (report)
  "Return the directories whose files are in REPORT, or t for all."
  (or (qwen-companion-context-sent-everywhere report)
      (qwen-companion-context-sent-roots report)))

(defun qwen-companion-inspector--facts (session report context now)
  "Return the lines about SESSION, its REPORT and CONTEXT, at the time NOW."
  (let ((directory (qwen-companion-session-directory session))
        (terminal (qwen-companion-terminal-session-buffer session))
        (roots (and report (qwen-companion-inspector--roots report))))
    (mapconcat
     (lambda (fact)
       (if (cdr fact)
           (concat (apply #'qwen-companion-inspector--field fact) "\n")
         ""))
     `(("Process"
        ,(or (qwen-companion-backend-process-text session) "unknown")
        ,@(when directory
            (list (qwen-companion-inspector--annotate " in ")
                  (qwen-companion-inspector--short directory))))
       ("Terminal"
        ,@(when terminal
            (list (qwen-companion-inspector--link
                   (qwen-companion-untrusted-text (buffer-name terminal)) 'link))))
       ("Workspace"
        ,@(when report
            (list (cond ((eq roots t) "files everywhere")
                        (roots (mapconcat #'qwen-companion-inspector--short roots ", "))
                        (t "no file: no root is open")))))
       ("Status" ,@(ensure-list (qwen-companion-layer-describe session now)))
       ("Trust"
        ,(pcase (qwen-companion-told-context-trust context)
           ('trusted "the workspace is trusted")
           ('untrusted "the workspace is not trusted")
           (_ (qwen-companion-inspector--annotate "not reported"))))
       ("Last update"
        ,(if report
             (concat (qwen-companion-inspector--age
                      (qwen-companion-context-sent-sent report) now)
                     " ago")
           "nothing yet")
        ,(unless (qwen-companion-session-streaming session)
           (propertize ", stream closed" 'face 'qwen-companion-inspector-warning)))
       ("Files"
        ,@(when (and report (null (qwen-companion-told-context-files context)))
            (list (qwen-companion-inspector--annotate "none")))))
     "")))

(defun qwen-companion-inspector--file-items (id report files buffers now)
  "Return the items about FILES in REPORT to the session ID.
BUFFERS and NOW are as in `qwen-companion-inspector--session-items'."
  (let* ((roots (qwen-companion-inspector--roots report))
         (names (mapcar (lambda (file)
                          (qwen-companion-inspector--short
                           (qwen-companion-told-file-path file) roots))
                        files))
         (width (qwen-companion-inspector--width names)))
    (cl-mapcar
     (lambda (file name)
       (let* ((path (qwen-companion-told-file-path file))
              (key (list 'file id path)))
         (cons key
               (concat
                "    "
                (qwen-companion-inspector--describe-file
                 file name width (gethash path buffers) now)
                (qwen-companion-inspector--selection file key)))))
     files names)))

(defun qwen-companion-inspector--width (names)
  "Return the width in columns of a list of NAMES."
  (min 48 (apply #'max 0 (mapcar #'string-width names))))

(defun qwen-companion-inspector--pad (name width face)
  "Return NAME in FACE as a link, filled up to WIDTH columns."
  (concat (qwen-companion-inspector--link name face)
          (make-string (max 0 (- width (string-width name))) ?\s)))

(defun qwen-companion-inspector--describe-file (file name width buffer now)
  "Return the line about FILE, shown as NAME in WIDTH columns.
BUFFER visits it, if any does; NOW is the time in seconds."
  (let ((active (qwen-companion-told-file-active file))
        (line (qwen-companion-told-file-line file)))
    (concat
     (qwen-companion-inspector--pad
      name width (if active 'qwen-companion-inspector-active 'default))
     (qwen-companion-inspector--annotate
      (format "  %6s" (qwen-companion-inspector--age
                       (qwen-companion-told-file-time file) now)))
     (when active "  active")
     (when line
       (format " at %d:%d" line (qwen-companion-told-file-character file)))
     (when (and buffer (buffer-modified-p buffer))
       (propertize "  unsaved" 'face 'qwen-companion-inspector-warning))
     (when (and buffer (eq 'show (qwen-companion-privacy-exposure buffer)))
       (qwen-companion-inspector--annotate "  shown by you"))
     "\n")))

(defun qwen-companion-inspector--selection (file key)
  "Return the lines about the selection in FILE, the item KEY, or nil."
  (when-let* ((text (qwen-companion-told-file-selection file)))
    (let* ((length (length text))
           (marked (qwen-companion-context-marked
                    (qwen-companion-told-file-path file)))
           (shown (if (qwen-companion-inspector--folded-p key t)
                      (qwen-companion-inspector--head text)
                    text)))
      (concat
       (qwen-companion-inspector--annotate
        (format (ngettext "      %d character selected" "      %d characters selected" length)
                length))
       (when (and marked (> marked length)
                  (qwen-companion-context-selection-full-p text))
         (propertize (format ", %d more not sent" (- marked length))
                     'face 'qwen-companion-inspector-warning))
       (when (< (length shown) length)
         (qwen-companion-inspector--annotate " ..."))
       "\n"
       (qwen-companion-inspector--block
        (qwen-companion-untrusted-text shown t))))))

(defun qwen-companion-inspector--answers-item (id answers now last)
  "Return the item of the ANSWERS to hooks of the session ID, at the time NOW.
LAST is non-nil for the last item of its session."
  (let ((count (apply #'+ (mapcar #'qwen-companion-hook-answer-count answers))))
    (qwen-companion-inspector--section
     (list 'answers id) t
     (qwen-companion-inspector--field
      "Hooks"
      (format (ngettext "%d answer, last %s ago" "%d answers, last %s ago" count) count
              (qwen-companion-inspector--age
               (qwen-companion-hook-answer-time (car answers)) now)))
     (lambda () (qwen-companion-inspector--answer-lines answers now))
     (and last "\n"))))

(defun qwen-companion-inspector--answer-lines (answers now)
  "Return a line for each of ANSWERS to hooks, at the time NOW."
  (mapconcat
   (lambda (answer)
     (concat
      "    "
      (qwen-companion-untrusted-text
       (string-trim (concat (qwen-companion-hook-answer-event answer) " "
                            (qwen-companion-hook-answer-tool answer))))
      (qwen-companion-inspector--annotate
       (format "  %d x, last %s ago  "
               (qwen-companion-hook-answer-count answer)
               (qwen-companion-inspector--age
                (qwen-companion-hook-answer-time answer) now)))
      (qwen-companion-untrusted-text
       (qwen-companion-hook-answer-answer answer))
      "\n"))
   answers ""))

(defun qwen-companion-inspector--call-items (now)
  "Return the items about the tools that models have used, at the time NOW."
  (when qwen-companion-inspector--calls
    (append
     (list (cons '(calls)
                 (concat (propertize "Tools that models have called"
                                     'face 'qwen-companion-inspector-heading)
                         "\n")))
     (mapcar (lambda (call)
               (qwen-companion-inspector--call-item call now))
             qwen-companion-inspector--calls)
     (list (cons '(calls-end) "\n")))))

(defun qwen-companion-inspector--call-item (call now)
  "Return the item about CALL at the time NOW."
  (qwen-companion-inspector--section
   (list 'call (qwen-companion-inspector--call-key call)) t
   (concat "  "
           (qwen-companion-untrusted-text (qwen-companion-tool-called-request call))
           (qwen-companion-inspector--annotate
            (qwen-companion-inspector--call-facts call now)))
   (lambda ()
     (qwen-companion-inspector--block
      (qwen-companion-untrusted-text (plist-get call :answer) t)))))

(defun qwen-companion-inspector--call-facts (call now)
  "Return the outcome of the tool CALL, at the time NOW."
  (format "  %s%d bytes, %d ms, %s ago, %s"
          (if (qwen-companion-tool-called-failed call) "refused, " "")
          (qwen-companion-tool-called-size call)
          (qwen-companion-tool-called-ms call)
          (qwen-companion-inspector--age (qwen-companion-tool-called-called call) now)
          (qwen-companion-untrusted-text (qwen-companion-tool-called-client call))))

(defun qwen-companion-inspector--json-item (id report)
  "Return the item of the JSON of REPORT to the session ID."
  (qwen-companion-inspector--section
   (list 'json id) t
   (qwen-companion-inspector--field
    "JSON" (format "%d bytes" (string-bytes (plist-get report :json))))
   (lambda ()
     (qwen-companion-inspector--block
      (qwen-companion-untrusted-text (plist-get report :pretty) t)))
   "\n"))

(defun qwen-companion-inspector--exclusion-items (session)
  "Return the items about files hidden from SESSION; nil means from all CLIs."
  (let* ((id (qwen-companion-session-id session))
         (key (list 'exclusions id))
         (folded (qwen-companion-inspector--folded-p key nil))
         (process (qwen-companion-backend-process-text session)))
    (when-let* ((exclusions
                 (cl-remove-if-not
                  (lambda (exclusion)
                    (equal id (qwen-companion-exclusion-session exclusion)))
                  qwen-companion-inspector--exclusions)))
      (cons (qwen-companion-inspector--section
             key nil
             (concat
              (propertize (if session
                              (format "Hidden from %s" (qwen-companion-inspector--label session))
                            "Hidden from all CLIs")
                          'face 'qwen-companion-inspector-heading)
              (when process
                (qwen-companion-inspector--annotate (concat ", process " process))))
             #'ignore
             (and folded "\n"))
            (unless folded
              (qwen-companion-inspector--excluded-items id exclusions))))))

(defun qwen-companion-inspector--excluded-items (id exclusions)
  "Return the items of EXCLUSIONS of the session ID."
  (let* ((names (mapcar (lambda (exclusion)
                          (qwen-companion-inspector--short
                           (qwen-companion-exclusion-path exclusion)))
                        exclusions))
         (width (qwen-companion-inspector--width names))
         (items (cl-mapcar
                 (lambda (exclusion name)
                   (cons (list 'excluded id (qwen-companion-exclusion-path exclusion))
                         (concat
                          "    "
                          (qwen-companion-inspector--pad name width 'default)
                          "  "
                          (qwen-companion-inspector--annotate
                           (qwen-companion-untrusted-text
                            (qwen-companion-exclusion-rule exclusion)))
                          "\n")))
                 exclusions names))
         (last (car (last items))))
    (setcdr last (concat (cdr last) "\n"))
    items))

;;; For a bug report

(defun qwen-companion-inspector-summary ()
  "Return the time and size of each CLI's context, without texts and file names.
Return nil when there is no inspector."
  (qwen-companion-inspector--with-buffer
    (let ((now (float-time)))
      (concat
       (mapconcat (lambda (session)
                    (qwen-companion-inspector--session-summary session now))
                  (qwen-companion-backend-sessions) "")
       (mapconcat (lambda (call)
                    (concat "Tool "
                            ;; The rest are arguments.
                            (car (split-string (qwen-companion-tool-called-request call)))
                            (qwen-companion-inspector--call-facts call now)
                            "\n"))
                  qwen-companion-inspector--calls "")))))

(defun qwen-companion-inspector--session-summary (session now)
  "Return lines about SESSION for a bug report, at the time NOW."
  (let* ((id (qwen-companion-session-id session))
         (report (qwen-companion-inspector--report-of id))
         (answers (cdr (assoc id qwen-companion-inspector--answers))))
    (concat (qwen-companion-inspector--label session)
            (if report
                (format ": %d bytes of context, %s ago\n"
                        (string-bytes (plist-get report :json))
                        (qwen-companion-inspector--age
                         (qwen-companion-context-sent-sent report) now))
              ": no context\n")
            ;; The user's words follow a colon.
            (replace-regexp-in-string
             ": .*$" "" (qwen-companion-inspector--answer-lines answers now)))))

;;; Drawing

(defun qwen-companion-inspector--redraw-soon ()
  "Redraw the inspector, the current buffer, soon if it is in a window."
  (qwen-companion-timers-update-soon qwen-companion-inspector--delay))

(defun qwen-companion-inspector--draw ()
  "Redraw what has changed in the current buffer."
  (qwen-companion-items-update
   (mapcar (pcase-lambda (`(,key . ,text))
             (cons key (cons text text)))
           (qwen-companion-inspector--items))))

;;; Commands

(defun qwen-companion-inspector--key ()
  "Return the key of the item at point, or nil."
  (qwen-companion-items-key-at (point)))

(defun qwen-companion-inspector-next (&optional count)
  "Go to the next item, or forward by COUNT items."
  (interactive "p" qwen-companion-inspector-mode)
  (let* ((starts (mapcar #'cadr (qwen-companion-items-bounds)))
         (here (cl-position (qwen-companion-items-start (qwen-companion-inspector--key))
                            starts))
         (there (and here (+ here (or count 1)))))
    (unless (and there (<= 0 there) (< there (length starts)))
      (user-error "No more items"))
    (goto-char (nth there starts))
    (skip-chars-forward " ")))

(defun qwen-companion-inspector-previous (&optional count)
  "Go to the previous item, or back by COUNT items."
  (interactive "p" qwen-companion-inspector-mode)
  (qwen-companion-inspector-next (- (or count 1))))

(defun qwen-companion-inspector-visit ()
  "Visit the file or terminal at point in another window.
That is the buffer of a file or the terminal of a CLI."
  (interactive nil qwen-companion-inspector-mode)
  (pcase (qwen-companion-inspector--key)
    (`(,(or 'file 'excluded) ,_ ,path)
     (if-let* ((buffer (gethash path (qwen-companion-inspector--file-buffers))))
         (switch-to-buffer-other-window buffer)
       (unless (or (file-remote-p path) (file-exists-p path))
         (user-error "%s no longer exists" (qwen-companion-inspector--short path)))
       (find-file-other-window path)))
    (`(,(or 'session 'answers 'json) ,id)
     (let ((session (or (qwen-companion-backend-session id)
                        (user-error "This CLI has disconnected"))))
       (switch-to-buffer-other-window
        (or (qwen-companion-terminal-session-buffer session)
            (user-error "%s is not in a terminal of this Emacs"
                        (qwen-companion-inspector--label session))))))
    (_ (user-error "Not on a file or a CLI"))))

(defun qwen-companion-inspector-copy-json ()
  "Copy the exact JSON last sent to the CLI at point.
On a tool call, copy the answer sent to the model."
  (interactive nil qwen-companion-inspector-mode)
  (pcase (qwen-companion-inspector--key)
    (`(call ,key)
     (kill-new (plist-get (qwen-companion-inspector--call-with key) :answer))
     (message "Copied the answer sent to the model"))
    (key
     (kill-new (plist-get (or (qwen-companion-inspector--report-of
                               (or (nth 1 key) (user-error "Not on a CLI")))
                              (user-error "Nothing has been sent to this CLI yet"))
                          :json))
     (message "Copied the last JSON"))))

(defun qwen-companion-inspector-toggle-fold ()
  "Fold or unfold the section, JSON or selection at point.
That is the selection of a file, the JSON, or else the whole section."
  (interactive nil qwen-companion-inspector-mode)
  (let ((key (pcase (qwen-companion-inspector--key)
               ((and `(file ,id ,path) key)
                (if (cl-some (lambda (file)
                               (and (equal path (qwen-companion-told-file-path file))
                                    (qwen-companion-told-file-selection file)))
                             (when-let* ((report (qwen-companion-inspector--report-of id)))
                               (qwen-companion-told-context-files
                                (qwen-companion-context-sent-context report))))
                    key
                  (list 'session id)))
               (`(excluded ,id ,_) (list 'exclusions id))
               ((and `(,(or 'session 'answers 'json 'exclusions 'call) ,_) key) key)
               (_ (user-error "Nothing to fold here")))))
    (qwen-companion-items-toggle key)
    (skip-chars-forward " ")
    (qwen-companion-inspector--draw)))

(defun qwen-companion-inspector-toggle-exclusion ()
  "Hide the file at point from CLIs, or show it to them.
Hide a file that is shown to CLIs, and show one that a rule hides.  For a
file that you have hidden or shown, apply the rules again."
  (interactive nil qwen-companion-inspector-mode)
  (pcase-let*
      ((`(,kind ,id ,path) (qwen-companion-inspector--key))
       (_ (unless path (user-error "Not on a file")))
       (name (qwen-companion-inspector--short path))
       (buffer (or (gethash path (qwen-companion-inspector--file-buffers))
                   (user-error "No buffer visits %s now" name))))
    (qwen-companion-privacy-set-exposure
     buffer
     (cond ((qwen-companion-privacy-exposure buffer) nil)
           ((eq kind 'file) 'hide)
           ((and (file-remote-p path) (not (qwen-companion-places-root path)))
            (user-error "%s is on a host that is not served; see M-x qwen-companion-serve-place"
                        name))
           ;; Without asking TRAMP.
           ((not (or (file-remote-p path) (file-exists-p path)))
            (user-error "%s is not on disk; save it first" name))
           ((qwen-companion-inspector--outside-p path id)
            (user-error "%s is outside of the project of this CLI; see `qwen-companion-tell-all-roots'"
                        name))
           (t 'show)))))

(defun qwen-companion-inspector--outside-p (path id)
  "Return non-nil when PATH is outside of all directories sent to session ID."
  (let ((roots (when-let* ((report (qwen-companion-inspector--report-of id)))
                 (qwen-companion-inspector--roots report))))
    (and id (listp roots)
         (not (cl-some (lambda (root)
                         (qwen-companion-untrusted-in-directory-p path root))
                       roots)))))

;;; The buffer

(qwen-companion-header-define-keys qwen-companion-inspector-mode "CLI-Context"
  (visit qwen-companion-inspector-visit "Go to the File or Terminal" "go to")
  ([mouse-2] qwen-companion-header-click nil)
  (fold qwen-companion-inspector-toggle-fold "Fold or Unfold")
  (next qwen-companion-inspector-next nil)
  (previous qwen-companion-inspector-previous nil)
  "---"
  (exclude qwen-companion-inspector-toggle-exclusion "Hide or Show the File")
  (copy qwen-companion-inspector-copy-json "Copy the JSON" "copy JSON")
  (refresh revert-buffer "Refresh")
  (help qwen-companion-header-help nil))

(define-derived-mode qwen-companion-inspector-mode special-mode "CLI-Context"
  "Show the latest context of each connected CLI, and the hidden files.

The text updates itself while a window shows it.
Info node `(qwen-companion)Privacy' is about it.

\\{qwen-companion-inspector-mode-map}"
  :group 'qwen-companion
  :interactive nil
  (buffer-disable-undo)
  (qwen-companion-header-set-up-mode)
  ;; A name in a right-to-left script must not turn the line around.
  (setq-local bidi-paragraph-direction 'left-to-right
              revert-buffer-function #'qwen-companion-inspector--revert
              header-line-format
              '((:eval (qwen-companion-header-line
                        "Context of CLIs"
                        (qwen-companion-header-mode-keys)))))
  (qwen-companion-timers-keep-updated #'qwen-companion-inspector--draw
                                      qwen-companion-inspector--tick-seconds)
  (add-hook 'kill-buffer-hook #'qwen-companion-inspector--close nil t)
  (add-hook 'change-major-mode-hook #'qwen-companion-inspector--close nil t))

(defun qwen-companion-inspector--revert (&rest _)
  "Request all reports again, and redraw."
  (qwen-companion-inspector-resend)
  (qwen-companion-inspector--draw))

(defun qwen-companion-inspector-resend ()
  "Ask a new Python process for reports, if there is an inspector."
  (when qwen-companion-inspector--buffer
    (qwen-companion-backend-call 'watch '(:on t))))

(defun qwen-companion-inspector--close ()
  "Stop updating the inspector, the current buffer, which is being closed."
  (remove-hook 'qwen-companion-state-functions #'qwen-companion-inspector-changed)
  (when (eq qwen-companion-inspector--buffer (current-buffer))
    (setq qwen-companion-inspector--buffer nil)
    (qwen-companion-backend-call 'watch '(:on nil))))

(defun qwen-companion-inspector-forget ()
  "Close the inspector, if there is one, and its window."
  (when qwen-companion-inspector--buffer
    (quit-windows-on qwen-companion-inspector--buffer t)
    ;; No window has shown it.
    (qwen-companion-inspector--with-buffer (kill-buffer))))

(defun qwen-companion-inspector-open ()
  "Return the inspector, made if need be."
  (unless qwen-companion-inspector--buffer
    (with-current-buffer
        (generate-new-buffer qwen-companion-inspector--buffer-name)
      (qwen-companion-inspector-mode)
      (setq qwen-companion-inspector--buffer (current-buffer))
      (add-hook 'qwen-companion-state-functions
                #'qwen-companion-inspector-changed)
      (qwen-companion-inspector-resend)))
  qwen-companion-inspector--buffer)

;;;###autoload
(defun qwen-companion-context ()
  "Show the latest context of each connected CLI: files, cursor, selection.
Below are the open files hidden from them, each with its rule.  The buffer
updates itself while a window shows it."
  (interactive)
  (when (eq (qwen-companion-state) 'off)
    (user-error "The companion is off and sends no context; turn it on with M-x qwen-companion-mode"))
  (pop-to-buffer (qwen-companion-inspector-open))
  (qwen-companion-timers-update-visible))

(provide 'qwen-companion-inspector)
;;; qwen-companion-inspector.el ends here
