;;; qwen-companion-chat-tools.el --- Tools and plans in a chat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A tool call is shown as one line with its status; folded below it are its
;; input, its output and its duration.  Long texts are cut, and shown
;; completely in a separate buffer on request.
;;
;; A tool's changes of files are shown as lines of the conversation if they are
;; short, else in separate buffers.  The texts come from a model: no mode
;; hooks, local variables or file name handlers are applied to them.

;;; Code:

(require 'cl-lib)
(require 'diff-mode)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-chat-blocks)
(require 'qwen-companion-chat-markdown)
(require 'qwen-companion-chat-places)
(require 'qwen-companion-chat-state)
(require 'qwen-companion-compare)
(require 'qwen-companion-daemon)
(require 'qwen-companion-daemon-messages)
(require 'qwen-companion-options)
(require 'qwen-companion-spool)
(require 'qwen-companion-untrusted)

(defvar-local qwen-companion-chat-tools--by-id nil
  "Hash table of the latest reports of the tools by their ids.")

(defun qwen-companion-chat-tools-forget ()
  "Forget all tools of the conversation."
  (setq qwen-companion-chat-tools--by-id (make-hash-table :test #'equal)))

(defun qwen-companion-chat-tools-get (id)
  "Return the latest report of the tool ID, or nil."
  (gethash id qwen-companion-chat-tools--by-id))

(defun qwen-companion-chat-tools-title (tool)
  "Return the title of TOOL, else its name, nil if it has neither."
  (or (qwen-companion-daemon-tool-title tool) (qwen-companion-daemon-tool-name tool)))

;;; Tool calls

(defun qwen-companion-chat-tools-show (tool)
  "Show TOOL, a report of a tool call."
  (puthash (qwen-companion-daemon-tool-id tool) tool qwen-companion-chat-tools--by-id)
  (let ((id (list 'tool (qwen-companion-daemon-tool-id tool))))
    (qwen-companion-chat-blocks-add
     tool id
     (concat (qwen-companion-chat-tools--summary tool)
             (qwen-companion-chat-blocks-indent (qwen-companion-chat-tools--details tool) "    ")))
    (qwen-companion-chat-blocks-make-foldable id t)))

(defun qwen-companion-chat-tools--summary (tool)
  "Return the line with the status and the title of TOOL."
  (let ((status (qwen-companion-daemon-tool-status tool))
        (duration (qwen-companion-chat-tools--duration tool)))
    (concat (propertize (format "%-9s" status)
                        'face (pcase status
                                ('done 'success)
                                ('failed 'error)
                                ('running 'warning)
                                (_ 'shadow)))
            " "
            (propertize (or (qwen-companion-chat-tools-title tool) "A tool")
                        'wrap-prefix (make-string 10 ?\s)
                        ;; Finished calls do not need attention.
                        'face (if (memq status '(done failed)) 'default 'bold))
            (if duration (propertize (format "  (%s)" duration) 'face 'shadow) "")
            (if-let* ((reason (and (eq status 'failed) (qwen-companion-chat-tools--first-line tool))))
                (propertize (concat "  " reason) 'face 'shadow 'wrap-prefix (make-string 10 ?\s))
              "")
            "\n")))

(defun qwen-companion-chat-tools--first-line (tool)
  "Return the first line of the output of TOOL, or nil."
  (when-let* ((output (qwen-companion-daemon-tool-output tool))
              (lines (split-string output "\n" t "[ \t]+")))
    (truncate-string-to-width (qwen-companion-untrusted-line (car lines)) 200 nil nil t)))

(defun qwen-companion-chat-tools-line-counts (lines)
  "Return the number of lines that LINES, of a unified diff, add and remove."
  (let ((added 0) (removed 0))
    (dolist (line (split-string lines "\n"))
      (cond ((string-prefix-p "+" line) (cl-incf added))
            ((string-prefix-p "-" line) (cl-incf removed))))
    (concat "  " (propertize (format "+%d" added) 'face 'diff-added)
            " " (propertize (format "-%d" removed) 'face 'diff-removed))))

(defun qwen-companion-chat-tools--duration (tool)
  "Return the duration of TOOL, a string, nil if unknown."
  (when-let* ((started (qwen-companion-daemon-tool-started tool))
              (ended (qwen-companion-daemon-tool-ended tool)))
    (format "%.1f s" (/ (max 0 (- ended started)) 1000.0))))

(defun qwen-companion-chat-tools--details (tool)
  "Return the lines below the first about TOOL."
  (concat
   (when-let* ((name (qwen-companion-daemon-tool-name tool)))
     (concat (propertize "Tool: " 'face 'shadow) name
             (when-let* ((type (qwen-companion-daemon-tool-type tool)))
               (format " (%s)" type))
             "\n"))
   ;; The title is usually the command itself.
   (unless (equal (qwen-companion-daemon-tool-command tool) (qwen-companion-daemon-tool-title tool))
     (qwen-companion-chat-tools--text
      tool "Command" 'input
      (qwen-companion-daemon-tool-command tool) (qwen-companion-daemon-tool-command-more tool)))
   (unless (qwen-companion-daemon-tool-command tool)
     (qwen-companion-chat-tools--text
      tool "Input" 'input
      (qwen-companion-daemon-tool-input tool) (qwen-companion-daemon-tool-input-more tool)))
   (mapconcat (lambda (diff) (qwen-companion-chat-tools--diff tool diff))
              (qwen-companion-daemon-tool-diffs tool) "")
   (qwen-companion-chat-tools--omitted "more changes that cannot be shown here"
                                       (qwen-companion-daemon-tool-diffs-more tool))
   (mapconcat #'qwen-companion-chat-tools--place (qwen-companion-daemon-tool-places tool) "")
   (qwen-companion-chat-tools--omitted "more files" (qwen-companion-daemon-tool-places-more tool))
   (qwen-companion-chat-tools--text
    tool "Output" 'output
    (qwen-companion-daemon-tool-output tool) (qwen-companion-daemon-tool-output-more tool))))

(defun qwen-companion-chat-tools--text (tool name part text more)
  "Return TEXT, PART of TOOL, under the title NAME, \"\" if TEXT is nil.
MORE is the number of omitted characters, nil for none."
  (if text
      (concat (propertize (concat name ":\n") 'face 'shadow)
              (propertize (string-trim-right text "\n+") 'face 'qwen-companion-chat-code)
              ;; Without the face, since the last newline of a fold is visible.
              "\n"
              (when more
                (concat (qwen-companion-chat-blocks-button
                         (format "%d more characters; show all" more)
                         #'qwen-companion-chat-tools-show-whole
                         (qwen-companion-daemon-tool-id tool) part
                         (qwen-companion-chat-tools-title tool))
                        "\n")))
    ""))

(defun qwen-companion-chat-tools--diff (tool diff)
  "Return the line about DIFF, a change of a file by TOOL."
  (let ((old (qwen-companion-daemon-diff-old-size diff))
        (new (qwen-companion-daemon-diff-new-size diff)))
    (concat (propertize "Change: " 'face 'shadow)
            (qwen-companion-chat-blocks-button
             (qwen-companion-daemon-diff-path diff)
             #'qwen-companion-chat-tools-show-changes tool (list diff))
            (cond ((not old) (format "  a new file of %d characters" new))
                  ;; The daemon does not always distinguish the two.
                  ((zerop old) (format "  %d characters; the file is new or was empty" new))
                  (t (format "  %d to %d characters" old new)))
            "\n")))

(defun qwen-companion-chat-tools--omitted (text count)
  "Return a line about COUNT omitted things, named by TEXT; \"\" for nil."
  (if count
      (propertize (format "%d %s\n" count text) 'face 'warning)
    ""))

(defun qwen-companion-chat-tools--place (place)
  "Return the line about PLACE, a position in a file of the daemon's host.
If the host is this machine, it links to the file."
  (let* ((path (qwen-companion-daemon-place-path place))
         (line (qwen-companion-daemon-place-line place))
         (text (if line (format "%s:%d" path line) path)))
    (concat (propertize "File: " 'face 'shadow)
            (if (and (qwen-companion-daemon-local-p)
                     (qwen-companion-chat-places-local-file path))
                (qwen-companion-chat-blocks-button text #'qwen-companion-chat-places-visit path line)
              text)
            "\n")))

;;; Complete texts

(defvar qwen-companion-chat-tools--fetches nil
  "Alist (KEY . CALLBACK) of the texts being fetched.
KEY is (SESSION TOOL PART INDEX).")

(defun qwen-companion-chat-tools-fetch (tool part index callback)
  "Fetch PART of the tool with the id TOOL and call CALLBACK with the text.
PART is `input' or `output', or `old', `new' or `diff' of the change
INDEX, from 0.  CALLBACK is called in the chat; after an error, which is
shown, it is called with nil."
  (let ((key (list qwen-companion-chat-session-id tool part index)))
    (push (cons key callback) qwen-companion-chat-tools--fetches)
    (qwen-companion-chat-call
     'daemon-fetch (list :session qwen-companion-chat-session-id :tool tool :part part :index index)
     (lambda (reply)
       (when-let* ((error (qwen-companion-daemon-reply-error reply)))
         (setq qwen-companion-chat-tools--fetches
               (cl-remove key qwen-companion-chat-tools--fetches
                          :key #'car :test #'equal))
         (qwen-companion-backend-notice error)
         (funcall callback nil))))))

(defun qwen-companion-chat-tools-on-text (payload)
  "Pass the text in the report PAYLOAD to the callbacks that wait for it."
  (let* ((key (list (qwen-companion-daemon-tool-text-session payload)
                    (qwen-companion-daemon-tool-text-tool payload)
                    (qwen-companion-daemon-tool-text-part payload)
                    (qwen-companion-daemon-tool-text-index payload)))
         (waiting (cl-remove key qwen-companion-chat-tools--fetches
                             :key #'car :test-not #'equal)))
    (setq qwen-companion-chat-tools--fetches
          (cl-set-difference qwen-companion-chat-tools--fetches waiting))
    (if (not waiting)
        (qwen-companion-spool-drop payload)
      (let ((text (qwen-companion-spool-text payload)))
        (pcase-dolist (`(,_ . ,callback) waiting)
          (funcall callback text))))))

(defun qwen-companion-chat-tools-show-whole (tool part title &optional callback)
  "Show PART of the tool with the id TOOL in a separate buffer.
TITLE is the tool's.  Call CALLBACK with t once it is shown, with nil if
it could not be fetched."
  (qwen-companion-chat-tools-fetch
   tool part 0
   (lambda (text)
     (when text
       (qwen-companion-chat-tools--view
        (format "*qwen-companion chat: %s of %s*" part
                (truncate-string-to-width title 60 nil nil t))
        text))
     (when callback
       (funcall callback (and text t))))))

;;; The use of the context

(defun qwen-companion-chat-show-usage ()
  "Show how the context window of the model is used."
  (interactive nil qwen-companion-chat-mode)
  (unless qwen-companion-chat-session-id
    (user-error "No session yet"))
  (qwen-companion-chat-call 'daemon-usage (list :session qwen-companion-chat-session-id)))

(defun qwen-companion-chat-tools-on-usage (payload)
  "Show how the context window is used, from the report PAYLOAD."
  (let ((name "*qwen-companion chat: context*"))
    (when (get-buffer name)
      (kill-buffer name))
    (qwen-companion-chat-tools--view name (qwen-companion-spool-text payload))))

(defconst qwen-companion-chat-tools--line-limit 1000
  "Characters after which a line is broken in a complete text.
Emacs scans all of a line to display any part of it: the end of one of 10
MB took 3 s.")

(defun qwen-companion-chat-tools--view (name text)
  "Show TEXT, read-only, in a new buffer with NAME."
  (with-current-buffer (generate-new-buffer name)
    (buffer-disable-undo)
    (insert text)
    (let ((broken (qwen-companion-chat-tools--break-lines)))
      (special-mode)
      (qwen-companion-untrusted-show-hidden)
      (when broken
        (setq-local header-line-format
                    (format " Lines are broken after %d characters; copied text has no breaks"
                            qwen-companion-chat-tools--line-limit)
                    filter-buffer-substring-function #'qwen-companion-chat-tools--without-breaks)))
    (goto-char (point-min))
    (set-buffer-modified-p nil)
    (display-buffer (current-buffer))))

(defun qwen-companion-chat-tools--break-lines ()
  "Break long lines of the current buffer; return non-nil if there are any."
  (let ((end (propertize "\n" 'qwen-companion-chat-break t))
        broken)
    (goto-char (point-min))
    (while (> (- (point-max) (point)) qwen-companion-chat-tools--line-limit)
      (let ((start (point)))
        (forward-char qwen-companion-chat-tools--line-limit)
        (cond ((eolp) (forward-char))
              ;; Skip all complete lines at once.
              ((search-backward "\n" start t) (forward-char))
              (t (insert end)
                 (setq broken t)))))
    broken))

(defun qwen-companion-chat-tools--without-breaks (start end delete)
  "Return the text from START to END without the breaks in long lines.
DELETE is as for `filter-buffer-substring'."
  (let ((text (buffer-substring--filter start end delete)))
    (with-temp-buffer
      (insert text)
      (let ((place (point-min)))
        (while (setq place (text-property-any place (point-max)
                                              'qwen-companion-chat-break t))
          (delete-region place (1+ place))))
      (buffer-string))))

;;; The plan

(defun qwen-companion-chat-tools-show-plan (plan)
  "Show PLAN, a report of the model's plan."
  (qwen-companion-chat-blocks-add
   plan (list 'plan (qwen-companion-daemon-change-turn plan))
   (concat (propertize "Plan\n" 'face 'bold)
           (mapconcat #'qwen-companion-chat-tools--step
                      (qwen-companion-daemon-plan-steps plan) ""))))

(defun qwen-companion-chat-tools--step (step)
  "Return the line about STEP of a plan."
  (pcase-let ((`(,box . ,face)
               (pcase (qwen-companion-daemon-step-status step)
                 ('done '("[x]" . shadow))
                 ('running '("[-]" . bold))
                 (_ '("[ ]" . default)))))
    (propertize (format "%s %s\n" box
                        ;; One line for each step, even if its text has
                        ;; several.
                        (string-join (split-string (qwen-companion-daemon-step-text step)) " "))
                'face face)))

;;; Changes of files

(defconst qwen-companion-chat-tools--diff-limit 20000
  "Characters of both sides above which a change is not shown as lines.")

(defun qwen-companion-chat-tools-fetch-sides (tool diff callback)
  "Fetch both texts of DIFF, a change by TOOL.
Call CALLBACK with the old and the new text in the current buffer; if they
could not be fetched, with nil twice."
  (let ((id (qwen-companion-daemon-tool-id tool))
        (index (qwen-companion-daemon-diff-index diff)))
    (qwen-companion-chat-tools-fetch
     id 'new index
     (lambda (new)
       (cond ((not new) (funcall callback nil nil))
             ;; A new file.
             ((not (qwen-companion-daemon-diff-old-size diff)) (funcall callback "" new))
             (t (qwen-companion-chat-tools-fetch
                 id 'old index
                 (lambda (old) (funcall callback old (and old new))))))))))

;;; As lines

(defun qwen-companion-chat-tools--fetch-diff (tool diff callback)
  "Fetch the lines of DIFF, a change by TOOL, as diff(1) writes them.
CALLBACK is as for `qwen-companion-chat-tools-fetch'."
  (qwen-companion-chat-tools-fetch
   (qwen-companion-daemon-tool-id tool) 'diff (qwen-companion-daemon-diff-index diff)
   callback))

(defun qwen-companion-chat-tools-change-lines (tool diff callback)
  "Get DIFF, a change by TOOL, as lines for the conversation.
Call CALLBACK in the current buffer with the lines, with `large' if they
would be too many, or with `failed'."
  (if (> (+ (or (qwen-companion-daemon-diff-old-size diff) 0)
            (qwen-companion-daemon-diff-new-size diff))
         qwen-companion-chat-tools--diff-limit)
      (funcall callback 'large)
    (qwen-companion-chat-tools--fetch-diff
     tool diff
     (lambda (output)
       (funcall callback
                (if output (qwen-companion-chat-tools--fontify-diff output) 'failed))))))

(defun qwen-companion-chat-tools--fontify-diff (output)
  "Return OUTPUT, a diff, with faces, and with its control characters visible."
  (mapconcat
   (lambda (line)
     (let ((line (qwen-companion-untrusted-text line t)))
       (propertize (concat line "\n")
                   'face (pcase (aref line 0)
                           (?+ 'diff-added)
                           (?- 'diff-removed)
                           (?@ 'diff-hunk-header)
                           (_ 'diff-context)))))
   (split-string output "\n" t)
   ""))

;;; In buffers

(defun qwen-companion-chat-tools-show-changes (tool diffs &optional callback)
  "Show DIFFS, each file change of TOOL, in buffers.
Use the front end in `qwen-companion-diff-style'.  Call CALLBACK in the
current buffer with t once all are shown, with nil if one could not be
fetched."
  (let ((callback (or callback #'ignore)))
    (if (and (eq qwen-companion-diff-style 'ediff)
             ;; Ediff arranges the windows, so it can show only one.
             (not (cdr diffs)))
        (qwen-companion-chat-tools-fetch-sides
         tool (car diffs)
         (lambda (old new)
           (cond
            ((not new) (funcall callback nil))
            ((save-current-buffer
               (qwen-companion-chat-tools--ediff
                (qwen-companion-daemon-diff-path (car diffs)) old new))
             (funcall callback t))
            (t (qwen-companion-chat-tools--show-each-change tool diffs callback)))))
      (qwen-companion-chat-tools--show-each-change tool diffs callback))))

(defun qwen-companion-chat-tools--show-each-change (tool diffs callback)
  "Show DIFFS, by TOOL, as unified diffs, one after the other.
CALLBACK is as for `qwen-companion-chat-tools-show-changes'."
  (if (not diffs)
      (funcall callback t)
    (qwen-companion-chat-tools--fetch-diff
     tool (car diffs)
     (lambda (output)
       (if (not output)
           (funcall callback nil)
         (display-buffer
          (let ((file-name-handler-alist nil))
            (qwen-companion-compare-make-buffer (qwen-companion-daemon-diff-path (car diffs)) output)))
         (qwen-companion-chat-tools--show-each-change tool (cdr diffs) callback))))))

(defun qwen-companion-chat-tools--ediff (path old new)
  "Compare OLD and NEW, texts of the file PATH, in Ediff.
Quitting it kills its buffers and restores the windows.  If Ediff cannot
compare them, show the reason and return nil."
  (let ((sides (list (qwen-companion-compare-side path "before" old)
                     (qwen-companion-compare-side path "after" new))))
    (condition-case err
        (progn
          (qwen-companion-compare-sides (car sides) (cadr sides) sides)
          t)
      (error
       (message "qwen-companion: Ediff cannot show %s (%s); showing a unified diff"
                (qwen-companion-untrusted-path path) (error-message-string err))
       nil))))

(provide 'qwen-companion-chat-tools)
;;; qwen-companion-chat-tools.el ends here
